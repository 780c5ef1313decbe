-- Prepended to the scripts that grant in place of `fence`: draws from the counter that Redisson keeps
-- for a fenced lock, so that the tokens of both sides are one row of numbers.
--
-- A plain counter for each lock, without an end: it begins anew when it is lost. With memory full it
-- is refused, before anything is written. Of `count` at once, all new, the first is returned: from 1
-- on, since what is below has other meanings in an answer.
local function next_counter(key, count)
  local first = redis.call('incrby', key, count) - count + 1
  if first < 1 then
    -- Without its name, which callers choose: it could hold a word that means something else.
    error('FENCE the fencing counter of the lock was below zero', 0)
  end
  return first
end

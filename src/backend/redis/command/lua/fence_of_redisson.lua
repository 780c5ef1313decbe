-- Prepended to the scripts that grant in place of fence.lua: takes a token from Redisson's counter of a
-- fenced lock, so that the tokens of both sides increase together.
--
-- There is one plain counter per lock, without a TTL. If it is lost, it restarts at 1. With memory full,
-- INCRBY is rejected before any write, which fails the script. `count` new counters are taken at once, and the first
-- is returned. It is at least 1, since lower numbers have other meanings in a reply.
local function next_counter(key, count)
  local first = redis.call('incrby', key, count) - count + 1
  if first < 1 then
    -- The text omits the name, which callers choose and which could contain a code.
    error('FENCE the fencing counter of the lock was below zero', 0)
  end
  return first
end

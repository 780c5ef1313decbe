-- Prepended to the scripts that grant: moves the node's one fencing counter.
--
-- The counter grows by one, and is never more than a millisecond behind the server's time in
-- microseconds: the clock carries it over an empty restart and over a failover, neither of which is
-- over in a millisecond, the last value over a clock that stands still or steps back.
-- One counter for all locks, because one per lock would leak a key per lock name for ever.
-- It must move before anything else is written: with memory full, INCRBY is the command that Redis
-- refuses, and then the script has changed nothing. It stays below 2^53, so doubles hold it exactly.
-- Numbers all the way: to write the time into a text and compare texts would cost as much as two
-- commands, and so would moving the counter each time to the microsecond.
-- Of `count` counters at once, all new, the first is returned and the last is what is kept.
local function next_counter(key, count)
  local top = redis.pcall('incrby', key, count)
  if type(top) == 'table' then
    local held = redis.pcall('get', key)
    if held and (type(held) == 'table' or not string.find(held, '^%d+$')) then
      error({ err = 'FENCE the fencing counter ' .. key .. ' holds something else' })
    end
    -- Refused for what the server says itself.
    top = redis.call('incrby', key, count)
  end
  local now = redis.call('time')
  local behind = now[1] * 1000000 + now[2] - top
  if behind > 1000 then
    top = redis.call('incrby', key, behind)
  end
  return top - count + 1
end

-- Prepended to the scripts that grant: moves the node's one fencing counter.
--
-- The counter becomes max(last + 1, server time in microseconds): the clock carries it over an
-- empty restart and over a failover, last + 1 over a clock that stands still or steps back.
-- One counter for all locks, because one per lock would leak a key per lock name for ever.
-- It must move before anything else is written: with memory full, SET is the command that Redis
-- refuses, and then the script has changed nothing. `SET .. GET` saves one call; servers before
-- 6.2 answer it with an error and get the long way. '%.0f', since Lua prints 14 digits by itself
-- and the counter has 16; it stays below 2^53, so doubles hold it exactly.
local function next_counter(key)
  local now = redis.call('time')
  local counter = string.format('%s%06d', now[1], now[2])
  local last = redis.pcall('set', key, counter, 'get')
  if last then
    local known = type(last) ~= 'table'
    if not known then
      last = redis.pcall('get', key) or 0
      if type(last) == 'table' then
        error({ err = 'FENCE the fencing counter ' .. key .. ' holds something else' })
      end
    end
    if tonumber(last) >= tonumber(counter) then
      counter = string.format('%.0f', tonumber(last) + 1)
      known = false
    end
    if not known then
      redis.call('set', key, counter)
    end
  end
  return counter
end

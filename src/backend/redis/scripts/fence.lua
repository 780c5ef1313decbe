-- Prepended to the scripts that grant: moves the node's one fencing counter.
--
-- The counter becomes max(last + 1, server time in microseconds): the clock carries it over an
-- empty restart and over a failover, last + 1 over a clock that stands still or steps back.
-- One counter for all locks, because one per lock would leak a key per lock name for ever.
-- It must move before anything else is written: with memory full, SET is the command that Redis
-- refuses, and then the script has changed nothing. `SET .. GET` saves one call; servers before
-- 6.2 answer it with an error and get the long way. '%.0f', since Lua prints 14 digits by itself
-- and the counter has 16; it stays below 2^53, so doubles hold it exactly.
-- Of `count` counters at once, all new, the first is returned and the last is what is kept.
-- Mostly the clock is ahead, which digits show without a conversion: that would cost as much as a command.
local function next_counter(key, count)
  local now = redis.call('time')
  local top = string.format('%s%06d', now[1], now[2])
  local last = redis.pcall('set', key, top, 'get')
  if count == 1 and type(last) == 'string' and #last == #top and last < top then
    return top
  end
  if last then
    local known = type(last) ~= 'table'
    if not known then
      last = redis.pcall('get', key) or 0
      if type(last) == 'table' then
        error({ err = 'FENCE the fencing counter ' .. key .. ' holds something else' })
      end
    end
    if tonumber(last) > tonumber(top) - count then
      top = string.format('%.0f', tonumber(last) + count)
      known = false
    end
    if not known then
      redis.call('set', key, top)
    end
  end
  if count == 1 then
    return top
  end
  return string.format('%.0f', tonumber(top) - count + 1)
end

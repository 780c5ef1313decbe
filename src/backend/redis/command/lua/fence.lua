-- Prepended to the scripts that grant: moves the fencing counter of the node.
--
-- The counter grows by one per grant, and stays within 1 ms of the server's time in microseconds. If it is
-- missing after an empty restart, it starts at the clock. A replica that was promoted may lack the last
-- grants. Its counter is then behind the clock by more than 1 ms, if the clocks agree and no two primaries
-- grant concurrently. If the clock stops or steps back, the counter continues from its last value.
-- There is one counter for all locks: one per lock would leave a key per lock name forever.
-- It moves before any other write: with memory full, too few replicas or a failed snapshot, Redis rejects INCRBY,
-- and the script has changed nothing. The result is then nil and the error. The counter stays below 2^53, up to which
-- doubles are exact.
-- Only numbers are compared: texts would cost as much as two commands, and an update to the microsecond as
-- much as one.
-- `time` is the time of the server as TIME returns it, if the caller has read it.
-- `count` new counters are taken at once. The first is returned, the last is stored. `count` should be a
-- string: Redis 7.0 prints a number to 17 digits for the command, which takes as long as that command.
local function next_counter(key, count, time)
  local top = redis.pcall('incrby', key, count)
  if type(top) == 'table' then
    local says = function(what) return string.find(top.err, what, 1, true) end
    if says('OOM') or says('NOREPLICAS') or says('MISCONF') then
      return nil, top
    end
    if says('WRONGTYPE') or says('not an integer') then
      error('FENCE the fencing counter ' .. key .. ' holds something else', 0)
    end
    -- The server returns the same error again, with its own text.
    top = redis.call('incrby', key, count)
  end
  local now = time or redis.call('time')
  local behind = now[1] * 1000000 + now[2] - top
  if behind > 1000 then
    top = redis.call('incrby', key, behind)
  end
  return top - count + 1
end

-- Prepended to the scripts that grant: moves the node's one fencing counter.
--
-- The counter grows by one, and at a grant is no more than a millisecond behind the server's time in
-- microseconds. Missing after an empty restart, it starts at the clock itself. On a replica that
-- took over it may have missed the last grants; it is further behind than that, if the clocks agree,
-- unless two primaries grant side by side: then no counter of theirs has an order. Where the clock
-- stands still or steps back, the last value goes on.
-- One counter for all locks, because one per lock would leak a key per lock name for ever.
-- It must move before anything else is written: with memory full, INCRBY is the command that Redis
-- refuses, and then the script has changed nothing. It stays below 2^53: doubles hold it exactly.
-- Numbers all the way: to write the time into a text and compare texts would cost as much as two
-- commands, and to move the counter each time to the microsecond as much as one.
-- Of `count` counters at once, all new, the first is returned and the last is what is kept. `count` is
-- better a text: Redis 7.0 prints a number to 17 digits for the command, which takes as long as that.
local function next_counter(key, count)
  local top = redis.pcall('incrby', key, count)
  if type(top) == 'table' then
    local says = function(what) return string.find(top.err, what, 1, true) end
    if says('WRONGTYPE') or says('not an integer') then
      error('FENCE the fencing counter ' .. key .. ' holds something else', 0)
    end
    -- Refused for what the server says itself: it says so again.
    top = redis.call('incrby', key, count)
  end
  local now = redis.call('time')
  local behind = now[1] * 1000000 + now[2] - top
  if behind > 1000 then
    top = redis.call('incrby', key, behind)
  end
  return top - count + 1
end

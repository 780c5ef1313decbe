-- Prepended to queue.lua, behind fence.lua: the messages of transfers carry fencing counters, so that a message
-- is a grant. The line before defines FENCE, the counter of a server that has one for all locks.
--
-- `next_number` takes the counter of a transfer, or returns nil: a transfer does not fail because of its counter.
-- `last_number` returns a number that all later counters exceed, and that no earlier counter does. It reads by
-- INCRBY, which the user may call anyway. A promoted replica may lack the last counters, and a server that lost
-- its data all of them. Then the clock, less the millisecond by which a counter may be behind it, is the larger
-- number.
local function next_number(key, time)
  local fine, counter = pcall(next_counter, key, '1', time)
  return fine and counter
end
local function last_number(key, now)
  local last = redis.pcall('incrby', key, '0')
  return type(last) == 'number' and math.max(last, (now - 1) * 1000) or nil
end

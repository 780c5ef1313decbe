-- Acquires a lock as a version without a queue does: at once if it is free, before all waiters in the queue.
--
-- KEYS[1] lock body, KEYS[2] fencing counter; ARGV[1] lease id, ARGV[2] TTL in ms
-- Reply: granted: -2 minus the counter; otherwise the holder's PTTL.
local left = redis.call('pttl', KEYS[1])
if left ~= -2 and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return left
end
local top = redis.call('incrby', KEYS[2], '1')
local now = redis.call('time')
local behind = now[1] * 1000000 + now[2] - top
if behind > 1000 then
  top = redis.call('incrby', KEYS[2], behind)
end
redis.call('hset', KEYS[1], ARGV[1], '1')
redis.call('pexpire', KEYS[1], ARGV[2])
return -2 - top

-- Reads the holder of a lock, and the length of its queue.
--
-- KEYS[1] lock body, KEYS[2] queue, missing while a slot is moving, or if it is denied
-- Reply: nil when free, otherwise {PTTL, queue, field, count}. Without the permission for HGETALL, field and
-- count are missing: the least-privilege user of this crate can only see that a lock is held. The queue is 0
-- without the permissions for sorted sets.
--
-- A forced release reads its holder here.
local left = redis.call('pttl', KEYS[1])
if left == -2 then
  return nil
end
redis.call('hlen', KEYS[1])
local queued = 0
if KEYS[2] then
  local fine, count = pcall(live, KEYS[2], clock())
  queued = fine and count or 0
end
local fields = redis.pcall('hgetall', KEYS[1])
return { left, queued, fields[1], fields[2] }

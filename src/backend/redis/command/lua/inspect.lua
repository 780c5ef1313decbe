-- Reads the holder of a lock.
--
-- KEYS[1] lock body
-- Reply: nil when free, otherwise {PTTL, field, count}. Without the permission for HGETALL, field and count
-- are missing: the least-privilege user of this crate can only see that a lock is held.
--
-- A forced release reads its holder here.
local left = redis.call('pttl', KEYS[1])
if left == -2 then
  return nil
end
redis.call('hlen', KEYS[1])
local fields = redis.pcall('hgetall', KEYS[1])
return { left, fields[1], fields[2] }

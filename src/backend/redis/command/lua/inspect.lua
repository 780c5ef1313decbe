-- Reads who holds a lock.
--
-- KEYS[1] lock body
-- Answer: nil when free; otherwise {PTTL, field, count}. Field and count are missing when the ACL
-- hides HGETALL: the least-privilege user of this crate can tell that a lock is held, not by whom.
local left = redis.call('pttl', KEYS[1])
if left == -2 then
  return nil
end
redis.call('hlen', KEYS[1])
local fields = redis.pcall('hgetall', KEYS[1])
return { left, fields[1], fields[2] }

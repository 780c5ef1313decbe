-- Releases a lock of any holder.
--
-- KEYS[1] lock body; ARGV[1] channel
-- Reply: 1 released, 0 free, -1 a key without a TTL, which is no lock.
--
-- HLEN fails on every other type, so only locks are deleted.
if redis.call('hlen', KEYS[1]) == 0 then
  return 0
end
if redis.call('pttl', KEYS[1]) == -1 then
  return -1
end
redis.call('del', KEYS[1])
publish_release(ARGV[1])
return 1

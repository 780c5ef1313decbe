-- Releases the lock of the holder that the caller has read.
--
-- KEYS[1] lock body; ARGV[1] field of the holder, ARGV[2] channel
-- Reply: 1 released, 0 not held by this holder.
--
-- A repeated call finds another field or none, so it does not release the lock of the next holder.
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('del', KEYS[1])
publish_release(ARGV[2])
return 1

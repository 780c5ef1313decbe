-- Releases the lock of the holder that the caller has read, and transfers it to its first waiter or notifies
-- the subscribers.
--
-- KEYS[1] lock body, KEYS[2] queue, missing while a slot is moving, or if it is denied, KEYS[3] as `fence` in
-- queue.lua, or nothing; ARGV[1] field of the holder, ARGV[2] channel, ARGV[3] as `blind` in queue.lua, or nothing
-- Reply: 1 or above released, as release.lua, 0 not held by this holder.
--
-- A repeated call finds another field or none, so it does not release the lock of the next holder.
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('del', KEYS[1])
if not KEYS[2] then
  sent(publish(PUBLISH, ARGV[2], '0'))
  return 1 + unpublished
end
blind = ARGV[3]
fence = KEYS[3] or not blind and FENCE
return free(KEYS[1], KEYS[2], ARGV[2])

-- Keeps a lease as a version without a queue does: unless another process subscribes, whichever place polls.
--
-- KEYS[1] lock body; ARGV[1] lease id, ARGV[2] TTL in ms, ARGV[3] channel, ARGV[4] number of the caller's own subscribers
-- Reply: 1 kept, 0 released.
assert(redis.call('hexists', KEYS[1], ARGV[1]) == 1)
if redis.call('pubsub', 'numsub', ARGV[3])[2] > tonumber(ARGV[4]) then
  redis.call('del', KEYS[1])
  redis.call('publish', ARGV[3], '0')
  return 0
end
redis.call('pexpire', KEYS[1], ARGV[2])
return 1

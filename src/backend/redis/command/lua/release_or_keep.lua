-- Keeps a lease unless another process subscribes to its release. Otherwise releases it, or only reports so.
--
-- KEYS[1] lock body, KEYS[2] fencing counter
-- ARGV[1] lease id, ARGV[2] TTL in ms, ARGV[3] channel,
-- ARGV[4] number of the caller's own subscribers of the channel, or -1 to count another one in any case,
-- ARGV[5] number of counters to take, ARGV[6] 1 to release, 0 while the lock is in use
-- Reply: kept: the first new counter as a negative number, or nil without a new one; otherwise the number of other subscribers, plus
-- one if ARGV[4] is -1; not held: 0.
--
-- One script counts and decides. A process that subscribes later attempts after its subscription. With memory
-- full, the counter does not move, and the lease is kept without: local waiters need no memory of the server.
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local others = listeners(ARGV[3]) - tonumber(ARGV[4])
if others > 0 then
  if ARGV[6] == '1' then
    redis.call('del', KEYS[1])
    publish_release(ARGV[3])
  end
  return others
end
local counter = next_counter(KEYS[2], ARGV[5])
if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('pexpire', KEYS[1], ARGV[2])
end
return counter and -counter

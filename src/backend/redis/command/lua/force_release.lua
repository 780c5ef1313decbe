-- Frees a lock whoever holds it.
--
-- KEYS[1] lock body; ARGV[1] channel
-- Answer: 1 freed, 0 was free, -1 something that is not a lock (a hash without an end).
--
-- HLEN fails on every other type, so nothing but a lock is ever deleted.
if redis.call('hlen', KEYS[1]) == 0 then
  return 0
end
if redis.call('pttl', KEYS[1]) == -1 then
  return -1
end
redis.call('del', KEYS[1])
publish_release(ARGV[1])
return 1

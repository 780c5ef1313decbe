-- Prepended to the scripts that release: tells of it by PUBLISH and by SPUBLISH, and counts who would hear.
--
-- A message that may not be sent fails nothing: the lock is free, and waiters poll. Redisson's
-- subscribers parse the message as a number; '0' is the one that says "unlocked".
local function publish_release(channel)
  redis.pcall('publish', channel, '0')
  redis.pcall('spublish', channel, '0')
end
local function listeners(channel)
  return redis.call('pubsub', 'numsub', channel)[2]
    + redis.call('pubsub', 'shardnumsub', channel)[2]
end

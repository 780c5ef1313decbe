-- Prepended to the scripts that release: publishes a release by PUBLISH, and counts subscribers.
--
-- A message that is denied fails no command: the lock is free, and waiters poll. Redisson parses the message
-- as a number, and '0' means "unlocked".
local function publish_release(channel)
  redis.pcall('publish', channel, '0')
end
local function listeners(channel)
  return redis.call('pubsub', 'numsub', channel)[2]
end

-- Prepended to the scripts that release: publishes a release by SPUBLISH. Returns the number of receivers that
-- the server counts, or an error.
--
-- A message that is denied fails no command: the lock is free, waiters poll, and the reply contains it. Redisson
-- parses the message as a number, and '0' means "unlocked".
local function publish_release(channel)
  return redis.pcall('spublish', channel, '0')
end

-- Prepended to the scripts that release: publishes a release by PUBLISH and SPUBLISH. Returns the number of
-- receivers that the server counts of one kind, unless it is 0 for both, or an error.
--
-- A message that is denied fails no command: the lock is free, and waiters poll. Redisson parses the message
-- as a number, and '0' means "unlocked".
local function publish_release(channel)
  local plain = redis.pcall('publish', channel, '0')
  local sharded = redis.pcall('spublish', channel, '0')
  return plain ~= 0 and plain or sharded
end

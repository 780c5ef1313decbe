-- Prepended to the scripts that release: publishes a release by PUBLISH and SPUBLISH. Returns the number of
-- receivers that the server counts of one kind, unless it is 0 for both, or an error of either kind.
--
-- A message that is denied fails no command: the lock is free, waiters poll, and the reply contains it. Redisson
-- parses the message as a number, and '0' means "unlocked".
local function publish_release(channel)
  local plain = redis.pcall('publish', channel, '0')
  local sharded = redis.pcall('spublish', channel, '0')
  if plain == 0 or type(sharded) == 'table' then
    return sharded
  end
  return plain
end

-- Prepended to the scripts that count subscribers, or that notify one of them: by PUBLISH.
--
-- `listeners` returns the number of subscribers of a channel, and how many of them are of this crate: these
-- subscribe to both channels by one command. `wake` sends a lease id to the channel of its manager, and returns
-- false if the server has no receiver for it.
local function listeners(channel)
  local counts = redis.call('pubsub', 'numsub', channel, channel .. '%w')
  return counts[2], counts[4]
end
local function wake(channel, lease)
  return redis.pcall('publish', channel, lease) ~= 0
end

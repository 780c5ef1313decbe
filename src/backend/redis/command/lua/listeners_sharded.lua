-- Prepended to the scripts that count subscribers, or that notify one of them: by SPUBLISH.
--
-- `listeners` returns the number of subscribers of a channel, and how many of them are of this crate: these
-- subscribe to both channels by one command. `wake` sends a lease id to the channel of its manager, and returns
-- false if the server has no receiver for it.
local function listeners(channel)
  local counts = redis.call('pubsub', 'shardnumsub', channel, channel .. '%w')
  return counts[2], counts[4]
end
local function wake(channel, lease)
  return redis.pcall('spublish', channel, lease) ~= 0
end

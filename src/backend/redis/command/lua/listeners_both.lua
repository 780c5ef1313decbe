-- Prepended to the scripts that count subscribers of both kinds, or that notify one of them.
--
-- `listeners` returns the number of subscribers of a channel, and how many of them are of this crate: these subscribe
-- to both channels, in both ways. With another channel, the third number is that of its subscribers, from the same
-- command. `is_heard` returns false if the server has no receiver for the channel of a manager, and `wake` sends a
-- message to it. It returns an error if the server rejects the message. A process has both subscriptions or none, so
-- one message is enough.
local function listeners(channel, ...)
  local plain = redis.call('pubsub', 'numsub', channel, channel .. '%w', ...)
  local sharded = redis.call('pubsub', 'shardnumsub', channel, channel .. '%w')
  return plain[2] + sharded[2], plain[4] + sharded[4], plain[6]
end
local function is_heard(channel)
  return redis.call('pubsub', 'numsub', channel)[2] ~= 0
end
local function wake(channel, message)
  return redis.pcall('publish', channel, message)
end

-- Prepended to the scripts that count subscribers, or that notify one of them, after the messages.
--
-- `listeners` returns the number of subscribers of a channel, and how many of them are of this crate: these subscribe
-- to `%w` before the channel, and end it after the channel. In between, the second number is too large by one, which
-- can hide a client outside the queue from one release. With another channel, the third number is that of its
-- subscribers, from the same command. `is_heard` returns false if the server has no receiver for the channel of a
-- manager, and `wake` sends a message to it. It returns an error if the server rejects the message. With messages of
-- both kinds, a process of this crate has both subscriptions or none, so one message is enough.
local function listeners(channel, ...)
  local counts = redis.call('pubsub', NUMSUB, channel, channel .. '%w', ...)
  local also = ALSO and redis.call('pubsub', ALSO, channel, channel .. '%w') or { 0, 0, 0, 0 }
  return counts[2] + also[2], counts[4] + also[4], counts[6]
end
local function is_heard(channel)
  return redis.call('pubsub', NUMSUB, channel)[2] ~= 0
end
local function wake(channel, message)
  return redis.pcall(PUBLISH, channel, message)
end

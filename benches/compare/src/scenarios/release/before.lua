-- The release script of tower-lock before it had a queue: the scenario `release` compares with it.
--
-- KEYS[i] lock bodies; ARGV[2i-1] lease id, ARGV[2i] channel
-- Reply: per key 1 released, 0 not held, or the error of that key. For one key there is no list.
local function publish_release(channel)
  redis.pcall('publish', channel, '0')
end
local function listeners(channel)
  return redis.call('pubsub', 'numsub', channel)[2]
end
local answers = {}
for i = 1, #KEYS do
  local held = redis.pcall('hdel', KEYS[i], ARGV[2 * i - 1])
  if held == 1 then
    publish_release(ARGV[2 * i])
  end
  answers[i] = held
end
if #KEYS == 1 then
  return answers[1]
end
return answers

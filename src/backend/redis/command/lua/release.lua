-- Gives up to 100 leases back and wakes those who wait.
--
-- KEYS[i] lock bodies; ARGV[2i-1] lease id, ARGV[2i] channel
-- Answer: per key 1 released, 0 not held, or the error of that key alone. Of a single key by itself: a
-- list of one takes the server as long as a command.
--
-- Idempotent, so no latch is needed: a second call finds no own field. It is the only one, so the
-- body goes with it.
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

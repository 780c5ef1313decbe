-- Releases up to 100 leases and notifies their waiters.
--
-- KEYS[i] lock bodies; ARGV[2i-1] lease id, ARGV[2i] channel
-- Reply: per key 1 released, 0 not held, or the error of that key. For one key there is no list, which would
-- cost the server as much as a command.
--
-- A repeated call finds no own field, so no latch is needed. The field is the only one of its hash, so HDEL
-- also deletes the body.
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

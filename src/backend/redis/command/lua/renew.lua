-- Lengthens up to 100 leases.
--
-- KEYS[i] lock bodies; ARGV[2i-1] lease id, ARGV[2i] time to live in ms
-- Answer: per key 1 renewed, 0 not held, or the error of that key alone. Of a single key by itself: a
-- list of one takes the server as long as a command.
--
-- Touches only an existing own field, so it never creates; only lengthens, so a renewal that
-- arrives late takes nothing away. No command in here is refused when memory is full.
local answers = {}
for i = 1, #KEYS do
  local held = redis.pcall('hexists', KEYS[i], ARGV[2 * i - 1])
  if held == 1 and redis.call('pttl', KEYS[i]) < tonumber(ARGV[2 * i]) then
    local armed = redis.pcall('pexpire', KEYS[i], ARGV[2 * i])
    if armed ~= 1 then
      held = armed
    end
  end
  answers[i] = held
end
if #KEYS == 1 then
  return answers[1]
end
return answers

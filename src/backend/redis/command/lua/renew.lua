-- Renews up to 100 leases.
--
-- KEYS[i] lock bodies; ARGV[2i-1] lease id, ARGV[2i] TTL in ms
-- Reply: per key 1 renewed, 0 not held, or the error of that key. For one key there is no list, which would
-- cost the server as much as a command.
--
-- It touches only an existing own field, so it creates no lock. It only extends, so a late renewal shortens
-- no lease. With memory full, none of its commands is rejected.
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

-- Removes up to 100 leases from the queues, and releases those that hold their locks.
--
-- KEYS[2i-1] lock bodies, KEYS[2i] queues; ARGV[2i-1] lease id, ARGV[2i] channel; then as `blind` in queue.lua,
-- or nothing
-- Reply: per key as release.lua, 0 also for a lease that was only in the queue. For one key there is no list.
--
-- A repeated call finds neither a place nor a field. The queue of another type is no queue.
blind = ARGV[#KEYS + 1]
local answers = {}
for i = 1, #KEYS, 2 do
  pcall(forget, KEYS[i + 1], ARGV[i])
  local held = redis.pcall('hdel', KEYS[i], ARGV[i])
  if held == 1 then
    held = free(KEYS[i], KEYS[i + 1], ARGV[i + 1])
  end
  answers[(i + 1) / 2] = held
end
if #KEYS == 2 then
  return answers[1]
end
return answers

-- Removes up to 100 leases from the queues, and releases those that hold their locks.
--
-- KEYS[1..n] lock bodies, KEYS[n+1..2n] their queues
-- ARGV[2i-1] lease id, ARGV[2i] channel; then as `blind` in queue.lua, or nothing
-- Reply: per key as release.lua, 0 also for a lease that was only in the queue. For one key there is no list.
--
-- A repeated call finds neither a place nor a field. The queue of another type is no queue.
local answers, count = {}, #KEYS / 2
blind = ARGV[2 * count + 1]
-- Removes the place of a lease of any mode.
local function forget_all(queue, lease)
  local shared, permit = 's' .. lease, 'p' .. lease
  local marks = { '!' .. lease, '?' .. lease, '!' .. shared, '?' .. shared, '!' .. permit, '?' .. permit }
  redis.call('zrem', queue, lease, shared, permit, unpack(marks))
  settle(queue)
end
for i = 1, count do
  local body, queue, lease = KEYS[i], KEYS[count + i], ARGV[2 * i - 1]
  pcall(forget_all, queue, lease)
  local held = ended(body, lease)
  if held == 1 then
    held = free(body, queue, ARGV[2 * i])
  elseif held == KEPT then
    held = 1
  end
  -- A lease may have been before others that fit.
  pcall(function()
    admit(body, queue, ARGV[2 * i], clock())
  end)
  answers[i] = held
end
if count == 1 then
  return answers[1]
end
return answers

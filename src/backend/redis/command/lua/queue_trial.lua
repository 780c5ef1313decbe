-- Finds out whether the user may run the commands of queue.lua. The other scripts hide a denial.
--
-- KEYS[1] the queue of a self-test
-- Reply: 1 if one of them is denied, otherwise 0. Full memory is no denial.
--
-- ZREM comes first, so a user without it leaves no key behind.
local queue = KEYS[1]
for _, command in ipairs({
  { 'zrem', queue, 'trial' },
  { 'zadd', queue, 1, 'trial' },
  { 'zscore', queue, 'trial' },
  { 'zcount', queue, 0, 1 },
  { 'zrange', queue, 0, 0 },
  { 'zrevrangebyscore', queue, 1, 0 },
  { 'zrem', queue, 'trial' },
}) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err and not string.find(reply.err, 'OOM', 1, true) then
    return 1
  end
end
return 0

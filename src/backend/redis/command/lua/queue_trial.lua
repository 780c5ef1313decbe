-- Finds out whether the user may run the commands of queue.lua. The other scripts hide a denial.
--
-- KEYS[1] the queue of a self-test
-- Reply: 0, or the error of the first one that the server rejects. Only a denial is of interest: a server may reject
-- all writes for another reason.
--
-- ZREM comes first, so a user without it leaves no key behind, and last.
local queue, rejection = KEYS[1], nil
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
  if type(reply) == 'table' and reply.err then
    rejection = rejection or reply
    if command[1] == 'zrem' then
      break
    end
  end
end
return rejection or 0

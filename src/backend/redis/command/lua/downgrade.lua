-- Makes an exclusive lease shared, and serves the first waiters of the queue that may share the lock.
--
-- KEYS[1] lock body, KEYS[2] fencing counter, KEYS[3] queue, missing while a slot is moving, or if it is denied
-- ARGV[1] lease id, ARGV[2] TTL in ms, ARGV[3] channel, ARGV[4] as `blind` in queue.lua, or 0
-- Reply: the counter, 0 not held, or the error of the counter.
--
-- A repeated call finds the shared lease, and takes another counter. The body has no moment without a lease, so it keeps
-- its TTL, and no exclusive lease can acquire it. The lease keeps a longer remaining TTL. With memory full, the counter
-- is rejected first, and nothing has changed.
local body, lease, queue, channel = KEYS[1], ARGV[1], KEYS[3], ARGV[3]
blind = ARGV[4] ~= '0' and ARGV[4]
local name, now = 's' .. lease, clock()
local exclusive = redis.call('hexists', body, lease) == 1
if not exclusive and not holds(body, name) then
  return 0
end
local counter, refused = next_counter(KEYS[2], '1')
if not counter then
  return refused
end
if exclusive then
  local armed = hold(body, name, math.max(redis.call('pttl', body), tonumber(ARGV[2])), now)
  if armed ~= 1 then
    redis.call('hdel', body, 'mode')
    return armed
  end
  redis.call('hdel', body, lease)
end
-- The lease is shared, so a denied or foreign queue raises no error.
local fine, queued = pcall(function()
  local queued = queue and redis.call('exists', queue) == 1
  if queued then
    admit(body, queue, channel, now)
  end
  return queued
end)
if not (fine and queued) then
  publish(PUBLISH, channel, '0')
end
return counter

-- Renews up to 100 shared leases or permits.
--
-- KEYS[1..n] lock bodies, KEYS[n+1..2n] their queues, or bodies alone; ARGV[1] as `blind` in queue.lua, or 0; then per
-- lease its name, its TTL in ms and the channel
-- Reply: per lease 1 renewed, 2 the same while a lease that does not fit or a client outside the queue waits, 0 not held,
-- or the error of that key.
--
-- It extends only the own lease, and the body to the latest deadline. PEXPIRE comes first: after it, a server with full
-- memory permits HSET. A renewal gives the clients that listen outside the queue a place.
blind = ARGV[1] ~= '0' and ARGV[1]
local answers, count = {}, (#ARGV - 1) / 3
local now = clock()
for i = 1, count do
  local body, queue = KEYS[i], KEYS[count + i]
  local name, ttl, channel = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), ARGV[3 * i + 1]
  local at = redis.pcall('hget', body, name)
  local answer = 0
  if type(at) == 'table' then
    answer = at
  elseif at and tonumber(at) > now then
    redis.call('pexpire', body, math.max(redis.call('pttl', body), ttl))
    if now + ttl > tonumber(at) then
      redis.call('hset', body, name, string.format('%.0f', now + ttl))
    end
    if queue then
      pcall(announce, queue, channel, now)
    end
    local fine, wanted = pcall(function()
      return queue and redis.call('exists', queue) == 1 and is_wanted(queue, channel, now, name)
    end)
    answer = fine and wanted and 2 or 1
  end
  answers[i] = answer
end
return answers

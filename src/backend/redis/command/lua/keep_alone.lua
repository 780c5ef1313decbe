-- Prepended to release_or_keep, before the functions of the queue: most calls end here, and the creation of functions
-- would cost them as much as some commands. KEYS, ARGV and the reply are as in release_or_keep.lua.
--
-- Keeps the leases of keys without subscribers and without a queue. Mostly all keys are such: one NUMSUB and one EXISTS
-- are enough. The counter moves once, before any other write, as in acquire_all.lua. `replies` has none for the other
-- keys.
local count, channels = (#ARGV - 1) / 7, {}
for i = 1, count do
  channels[i] = ARGV[7 * i - 3]
end
local heard = redis.call('pubsub', NUMSUB, unpack(channels))
local also = ALSO and redis.call('pubsub', ALSO, unpack(channels))
local has_queues = #KEYS > count + 1
local queued = has_queues and redis.call('exists', unpack(KEYS, count + 2)) ~= 0
local replies, counters, decided = {}, 0, true
for i = 1, count do
  local at = 7 * i - 5
  if ARGV[at + 3] == '-1' or heard[2 * i] ~= 0 or also and also[2 * i] ~= 0
    or queued and redis.call('exists', KEYS[count + 1 + i]) ~= 0 then
    decided = false
  else
    replies[i] = redis.call('hexists', KEYS[i + 1], ARGV[at])
    counters = counters + replies[i] * ARGV[at + 4]
  end
end
-- `counter`: the first one of the lease, or nil if it keeps its own.
local function keep(i, counter)
  local body, ttl = KEYS[i + 1], ARGV[7 * i - 4]
  if redis.call('pttl', body) < tonumber(ttl) then
    redis.call('pexpire', body, ttl)
  end
  return counter and -counter or 1
end
local first = counters > 0 and next_counter(KEYS[1], tostring(counters))
for i = 1, count do
  if replies[i] == 1 then
    replies[i] = keep(i, first)
    first = first and first + ARGV[7 * i - 1]
  end
end
if decided then
  return replies
end

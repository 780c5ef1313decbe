-- Acquires up to 100 different locks, each for a shared lease or a permit. It grants a lock that is free, or that leases
-- of the same mode hold, and of permits fewer than the limit, if no lease in its queue comes first.
--
-- KEYS[1..n] lock bodies, KEYS[n+1..2n] their queues, KEYS[2n+1] fencing counter; or a body alone, with the counter at
-- another node
-- ARGV[1] as `blind` in queue.lua, or 0; then per lock the name of the lease, the TTL in ms, the channel, and the limit
-- of permits or 0; for a vote the arguments of vote_counter.lua
-- Reply: for one lock as acquire.lua, or as vote.lua for a vote. The PTTL of a body that the lease may not share, and 0
-- for a free one, or the time for which the intent of an exclusive lease excludes it. For several locks the first
-- counter, if all were free and are granted, with consecutive counters in order. Otherwise a list of the replies for
-- one lock, or the error of that lock.
--
-- The body of a shared lock has the field 'mode' and a field for each lease with its deadline in ms of the server's
-- clock. That of permits also has 'next'. Its PTTL is that of the latest one. To Redisson and to acquire.lua, it is the
-- lock of another holder. If Redisson deletes the body by force, no lease is left.
--
-- Usually all locks are free and have no queue, which one EXISTS shows. Only the others need the functions of the queue:
-- `later` has them, and queue.lua and share_later.lua acquire them. The counter moves once for all free locks, before
-- any other write, as in acquire_all.lua. `replies` has the free locks that are not granted.
local count = math.floor((#ARGV - 1) / 4)
local free, later, replies = count, nil, nil
if redis.call('exists', unpack(KEYS, 1, math.min(#KEYS, 2 * count))) ~= 0 then
  later = {}
  for i = 1, count do
    if count == 1 or redis.call('exists', KEYS[i], KEYS[count + i]) ~= 0 then
      later[i] = true
      free = free - 1
    end
  end
end
local first, rejected
if free > 0 then
  first, rejected = next_counter(KEYS[2 * count + 1], tostring(free))
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local tried, ttl, till
  for i = 1, count do
    if not (later and later[i]) then
      local body, name = KEYS[i], ARGV[4 * i - 2]
      if not tried then
        -- The reads that renewals and releases need: if they are denied, no lease is granted.
        redis.call('hget', body, name)
        redis.call('hgetall', body)
        tried = true
      end
      if ttl ~= ARGV[4 * i - 1] then
        ttl = ARGV[4 * i - 1]
        till = string.format('%.0f', now + ttl)
      end
      local held = rejected or hold_free(body, name, ttl, till)
      if held ~= 1 then
        replies = replies or {}
        replies[i] = held
      end
    end
  end
end
if not later and not replies then
  if count > 1 or type(first) == 'string' then
    return first
  end
  return -2 - first
end

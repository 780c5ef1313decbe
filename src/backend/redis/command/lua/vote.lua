-- Acquires a lock as a node of a quorum: as acquire.lua, with the counter that the nodes agree on.
--
-- KEYS[1] lock body, KEYS[2] queue, unused if ARGV[5] is 0, KEYS[3] counter of the quorum
-- ARGV[2] lease id, ARGV[3] TTL in ms, ARGV[5] for how many ms this lease keeps further shared ones of other processes
-- out while it waits, or 0; the others as in share.lua
-- Reply: granted: the counter as a bulk string, '0' without one; otherwise the holder's PTTL as an integer,
-- or -1 for a key without a TTL.
--
-- The counter moves before the lock is written: with memory full, SET is rejected and nothing has changed.
--
-- A lease that waits records its intent in the queue, as in queue.lua. Without the permissions, shared leases are
-- not kept out. The read comes first: if it is denied, there is no intent without a TTL.
local left, waits = redis.call('pttl', KEYS[1]), ARGV[5] ~= '0'
local intent = '~^' .. string.sub(ARGV[2], 1, 36)
if left ~= -2 and redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
  if waits and redis.pcall('hget', KEYS[1], 'mode') == 'shared' then
    local time, rest = redis.call('time'), redis.pcall('pttl', KEYS[2])
    if type(rest) == 'number' then
      local till = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[5]
      if type(redis.pcall('zadd', KEYS[2], till, intent)) ~= 'table' then
        redis.pcall('pexpire', KEYS[2], math.max(rest, ARGV[5]))
      end
    end
  end
  return left
end
local counter = next_counter(KEYS[3])
redis.call('hset', KEYS[1], ARGV[2], '1')
-- A body without a TTL would block its key forever: if PEXPIRE is rejected, the body is deleted.
local armed = redis.pcall('pexpire', KEYS[1], ARGV[3])
if armed ~= 1 then
  redis.call('del', KEYS[1])
  return armed
end
if waits then
  redis.pcall('zrem', KEYS[2], intent)
end
return counter

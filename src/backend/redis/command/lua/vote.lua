-- Acquires a lock as a node of a quorum: as acquire.lua, with the counter that the nodes agree on.
--
-- KEYS[1] lock body, KEYS[2] counter of the quorum, KEYS[3] queue, if ARGV[5] is not 0
-- ARGV[1] lease id, ARGV[2] TTL in ms, ARGV[3] the counter, proposed or confirmed, ARGV[4] 1 to confirm, ARGV[5] for how
-- many ms this lease keeps further shared ones of other processes out while it waits, or 0
-- Reply: granted: the counter as a bulk string, '0' without one; otherwise the holder's PTTL as an integer,
-- or -1 for a key without a TTL.
--
-- A missing counter may have been lost with the data. A proposal does not recreate it, only a confirmation
-- by the majority. Until then, this node reports that it has none. The counter moves before the lock is
-- written: with memory full, SET is rejected and nothing has changed.
--
-- A lease that waits records its intent in the queue, as in queue.lua. Without the permissions, shared leases are
-- not kept out. The read comes first: if it is denied, there is no intent without a TTL.
local left, waits = redis.call('pttl', KEYS[1]), ARGV[5] ~= '0'
local intent = '~^' .. string.sub(ARGV[1], 1, 36)
if left ~= -2 and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  if waits and redis.pcall('hget', KEYS[1], 'mode') == 'shared' then
    local time, rest = redis.call('time'), redis.pcall('pttl', KEYS[3])
    if type(rest) == 'number' then
      local till = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[5]
      if type(redis.pcall('zadd', KEYS[3], till, intent)) ~= 'table' then
        redis.pcall('pexpire', KEYS[3], math.max(rest, ARGV[5]))
      end
    end
  end
  return left
end
local last = redis.call('get', KEYS[2])
local counter = '0'
if last or ARGV[4] == '1' then
  counter = ARGV[3]
  if last and tonumber(last) >= tonumber(counter) then
    counter = string.format('%.0f', tonumber(last) + 1)
  end
  redis.call('set', KEYS[2], counter)
end
redis.call('hset', KEYS[1], ARGV[1], '1')
-- A body without a TTL would block its key forever: if PEXPIRE is rejected, the body is deleted.
local armed = redis.pcall('pexpire', KEYS[1], ARGV[2])
if armed ~= 1 then
  redis.call('del', KEYS[1])
  return armed
end
if waits then
  redis.pcall('zrem', KEYS[3], intent)
end
return counter

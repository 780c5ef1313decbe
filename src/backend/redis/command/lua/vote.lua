-- Acquires a lock as a node of a quorum: as acquire.lua, with the counter that the nodes agree on.
--
-- KEYS[1] lock body, KEYS[2] counter of the quorum
-- ARGV[1] lease id, ARGV[2] TTL in ms, ARGV[3] the counter, proposed or confirmed, ARGV[4] 1 to confirm
-- Reply: granted: the counter as a bulk string, '0' without one; otherwise the holder's PTTL as an integer,
-- or -1 for a key without a TTL.
--
-- A missing counter may have been lost with the data. A proposal does not recreate it, only a confirmation
-- by the majority. Until then, this node reports that it has none. The counter moves before the lock is
-- written: with memory full, SET is rejected and nothing has changed.
local left = redis.call('pttl', KEYS[1])
if left ~= -2 and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
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
return counter

-- Takes a lock as a node of a quorum: as acquire.lua, under the counter that the nodes agree on.
--
-- KEYS[1] lock body, KEYS[2] counter of the quorum
-- ARGV[1] lease id, ARGV[2] time to live in ms, ARGV[3] the counter proposed or confirmed,
-- ARGV[4] 1 to confirm it
-- Answer: the counter as a bulk string when granted, '0' where there is none; otherwise the holder's
-- PTTL as an integer, -1 when what stands there has no end.
--
-- A counter that is missing may have been lost with the data. It is not made up again from a
-- proposal, only from what a majority remembers: until then this node says that it knows none.
-- It moves before the lock is written: with memory full, SET is refused and nothing has changed.
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
-- A body without an end would block its key for ever: if PEXPIRE is refused, take the body back.
local armed = redis.pcall('pexpire', KEYS[1], ARGV[2])
if armed ~= 1 then
  redis.call('del', KEYS[1])
  return armed
end
return counter

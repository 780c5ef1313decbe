-- Takes a lock that is free, or held by this very lease.
--
-- KEYS[1] lock body, KEYS[2] fencing counter
-- ARGV[1] lease id, ARGV[2] time to live in ms
-- Answer: -2 less the counter when granted, which is below all that PTTL says; in an array when
-- granted again; otherwise the holder's PTTL, -1 when what stands there has no end (not a lock: nobody
-- may wait for it).
--
-- An own field means that an earlier call was answered into a dead connection: granted again, and
-- still counted once. Whoever would take this grant back has to know that there was one before. A
-- foreign type makes HEXISTS fail and stays untouched.
local left = redis.call('pttl', KEYS[1])
if left ~= -2 and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return left
end
local counter = next_counter(KEYS[2], '1')
local fresh = redis.call('hset', KEYS[1], ARGV[1], '1')
-- A body without an end would block its key for ever: if PEXPIRE is refused, take the body back.
local armed = redis.pcall('pexpire', KEYS[1], ARGV[2])
if armed ~= 1 then
  redis.call('del', KEYS[1])
  return armed
end
if fresh == 0 then
  return { -2 - counter }
end
return -2 - counter

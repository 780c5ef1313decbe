-- Acquires a lock that is free, or held by this lease.
--
-- KEYS[1] lock body, KEYS[2] fencing counter
-- ARGV[1] lease id, ARGV[2] TTL in ms
-- Reply: granted: -2 minus the counter, which is below every reply of PTTL; granted again: the same in an
-- array; otherwise the holder's PTTL, or -1 for a key without a TTL, which is no lock and never expires.
--
-- An own field means that the reply to an earlier call was lost. The lock is granted again and still
-- counted once. The caller must have seen the first grant before it releases a repeated one. HEXISTS fails
-- on a foreign type, which stays untouched.
local left = redis.call('pttl', KEYS[1])
if left ~= -2 and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return left
end
local counter, refused = next_counter(KEYS[2], '1')
if not counter then
  return refused
end
local fresh = redis.call('hset', KEYS[1], ARGV[1], '1')
-- A body without a TTL would block its key forever: if PEXPIRE is rejected, the body is deleted.
local armed = redis.pcall('pexpire', KEYS[1], ARGV[2])
if armed ~= 1 then
  redis.call('del', KEYS[1])
  return armed
end
if fresh == 0 then
  return { -2 - counter }
end
return -2 - counter

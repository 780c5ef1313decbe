-- Releases a lock as a version without a queue does: notifies all subscribers without a transfer.
--
-- KEYS[1] lock body; ARGV[1] lease id, ARGV[2] channel
-- Reply: 1 released, 0 not held.
local held = redis.pcall('hdel', KEYS[1], ARGV[1])
if held == 1 then
  redis.pcall('publish', ARGV[2], '0')
end
return held

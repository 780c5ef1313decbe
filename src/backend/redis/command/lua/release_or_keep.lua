-- Keeps a lease if nobody outside listens for its release; otherwise releases it, or only says so.
--
-- KEYS[1] lock body, KEYS[2] fencing counter
-- ARGV[1] lease id, ARGV[2] time to live in ms, ARGV[3] channel,
-- ARGV[4] how many subscribers of the channel are the caller's own; -1 for somebody else in any case,
-- ARGV[5] how many counters to take, ARGV[6] 1 to release, 0 while somebody holds it
-- Answer: the first fresh counter as a negative number when kept; otherwise how many others listen, or
-- with -1 how many do and one; 0 not held.
--
-- Counting and deciding in one script: whoever subscribes later tries after subscribing.
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local others = listeners(ARGV[3]) - tonumber(ARGV[4])
if others > 0 then
  if ARGV[6] == '1' then
    redis.call('del', KEYS[1])
    publish_release(ARGV[3])
  end
  return others
end
local counter = next_counter(KEYS[2], ARGV[5])
if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('pexpire', KEYS[1], ARGV[2])
end
return -counter

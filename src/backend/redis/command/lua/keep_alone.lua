-- Prepended to release_or_keep, before the functions of the queue: most calls end here, and the creation of functions
-- would cost them as much as some commands. KEYS, ARGV and the reply are as in release_or_keep.lua.
--
-- Keeps a lease of a key without subscribers and without a queue.
local function keep(time)
  if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
    return 0
  end
  local counter = next_counter(KEYS[2], ARGV[5], time)
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('pexpire', KEYS[1], ARGV[2])
  end
  return counter and -counter
end
if ARGV[4] ~= '-1' and redis.call('pubsub', NUMSUB, ARGV[3])[2] == 0
  and not (ALSO and redis.call('pubsub', ALSO, ARGV[3])[2] ~= 0)
  and not (KEYS[3] and redis.call('exists', KEYS[3]) == 1) then
  return keep()
end

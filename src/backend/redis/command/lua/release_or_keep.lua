-- Keeps a lease unless another process waits for its release. Otherwise releases it, or only reports so.
--
-- KEYS[1] lock body, KEYS[2] fencing counter, KEYS[3] queue, missing if it is denied
-- ARGV[1] lease id, ARGV[2] TTL in ms, ARGV[3] channel,
-- ARGV[4] number of the caller's own subscribers of the channel, or -1 to count another one in any case,
-- ARGV[5] number of counters to take, ARGV[6] 1 to release, 0 while the lock is in use,
-- ARGV[7] the lease that enters the queue after a release, or empty, ARGV[8] its kind as in contend.lua,
-- ARGV[9] as `blind` in queue.lua, or 0
-- Reply: kept: the first new counter as a negative number, or nil without a new one; released: {number of other
-- processes, as release.lua, 1 if the next lease polls in the queue, 2 if it listens there, then as contend.lua for a
-- lease whose messages can be grants}; in use: that number; not held: 0.
--
-- One script counts and decides. A process that subscribes or enters the queue later attempts after that. Most
-- processes in the queue also subscribe, so the queue is counted only where no other process subscribes. With memory
-- full, the counter does not move, and the lease is kept without: local waiters need no memory of the server.
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
blind = ARGV[9] ~= '0' and ARGV[9]
fence = not blind and KEYS[2]
local now, all, ours = clock(), listeners(ARGV[3])
-- If the caller listens at a replica, `all` does not include its own subscribers.
local others = math.max(all - ARGV[4], all - ours)
if others <= 0 and KEYS[3] and redis.call('exists', KEYS[3]) == 1 then
  local fine, queued = pcall(live, KEYS[3], now)
  others = fine and queued or 0
end
if others > 0 then
  if ARGV[6] == '1' then
    redis.call('del', KEYS[1])
    if not KEYS[3] then
      sent(publish(PUBLISH, ARGV[3], '0'))
      return { others, 1 + unpublished, 0 }
    end
    local to = free(KEYS[1], KEYS[3], ARGV[3], false, all > ours)
    local fine, queued = pcall(function()
      return ARGV[7] ~= '' and wait(KEYS[3], ARGV[3], ARGV[7], ARGV[8], now)
    end)
    local entered, last = fine and queued and 1 or 0, nil
    if entered == 1 and queued == 0 then
      entered, last = 2, fence and last_number(fence, now) or nil
    end
    return { others, to, entered, last, CONFIRM }
  end
  return others
end
local counter = next_counter(KEYS[2], ARGV[5])
if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('pexpire', KEYS[1], ARGV[2])
end
return counter and -counter

-- Keeps a lease unless another process waits for its release. Otherwise releases it. keep_alone.lua is its first part.
--
-- KEYS[1] lock body, KEYS[2] fencing counter, KEYS[3] queue, missing if it is denied
-- ARGV[1] lease id, ARGV[2] TTL in ms, ARGV[3] channel,
-- ARGV[4] number of the caller's own subscribers of the channel, or -1 to count another one in any case,
-- ARGV[5] number of counters to take, ARGV[6] the lease that enters the queue after a release, or empty,
-- ARGV[7] its kind as in contend.lua, ARGV[8] as `blind` in queue.lua, or 0
-- Reply: kept: the first new counter as a negative number, or nil without a new one; released: {number of other
-- processes, as release.lua, 1 if the next lease polls in the queue, 2 if it listens there}; not held: 0.
--
-- One script counts and decides. A process that subscribes or enters the queue later attempts after that. Most
-- processes in the queue also subscribe, so the queue is counted only where no other process subscribes. With memory
-- full, the counter does not move, and the lease is kept without: local waiters need no memory of the server.
local body, queue, lease, channel, next_lease = KEYS[1], KEYS[3], ARGV[1], ARGV[3], ARGV[6]
blind = ARGV[8] ~= '0' and ARGV[8]
local now, all, ours, heard = clock(), counted(channel, own_channel(channel, next_lease))
-- If the caller listens at a replica, `all` does not include its own subscribers. Without a count, there is another
-- process: only the counts of several are implausible.
local others = all and math.max(all - ARGV[4], all - ours) or 1
if others <= 0 and queue and redis.call('exists', queue) == 1 then
  local fine, queued = pcall(live, queue, now)
  others = fine and queued or 0
end
if others > 0 then
  if redis.call('hdel', body, lease) == 0 then
    return 0
  elseif not queue then
    publish(PUBLISH, channel, '0')
    return { others, 1, 0 }
  end
  enters = next_lease ~= ''
  local to = free(body, queue, channel, false, all and all > ours)
  if not enters then
    return { others, to, 0 }
  end
  local kind = ARGV[7] == '!' and (blind == '2' or heard ~= 0) and '!' or '?'
  local fine, again = pcall(wait, queue, next_lease, kind, now)
  if not (fine and again) then
    enters = false
    pcall(settle, queue)
    return { others, to, 0 }
  end
  return { others, to, again > 0 and 1 or 2 }
end
return keep(time)

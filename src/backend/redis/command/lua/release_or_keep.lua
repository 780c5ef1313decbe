-- Keeps up to 100 leases, each unless another process waits for its release. Releases the others. keep_alone.lua is its
-- first part.
--
-- KEYS[1] fencing counter, KEYS[2..n+1] lock bodies, KEYS[n+2..2n+1] their queues, missing if they are denied
-- ARGV[1] as `blind` in queue.lua, or 0; for each lease, seven from ARGV[7i-5] on: its id, TTL in ms, channel,
-- number of the caller's own subscribers of the channel, or -1 to count another one in any case,
-- number of counters to take, the lease that enters the queue after a release, or empty,
-- its kind as in contend.lua
-- Reply, for each lease: kept: the first new counter as a negative number, or 1 without a new one; released: {number of
-- other processes, as release.lua, 1 if the next lease polls in the queue, 2 if it listens there}; not held: 0; or the
-- error of one of several.
--
-- One script counts and decides. A process that subscribes or enters the queue later attempts after that. Most
-- processes in the queue also subscribe, so the queue is counted only where no other process subscribes. With memory
-- full, the counter does not move, and the lease is kept without: local waiters need no memory of the server.
blind = ARGV[1] ~= '0' and ARGV[1]
local now = clock()
local function decide(i)
  local body, queue, at = KEYS[i + 1], has_queues and KEYS[count + 1 + i], 7 * i - 5
  local lease, channel, next_lease = ARGV[at], ARGV[at + 2], ARGV[at + 5]
  enters = false
  local all, ours, heard = counted(channel, own_channel(channel, next_lease))
  -- If the caller listens at a replica, `all` does not include its own subscribers. Without a count, there is another
  -- process: only the counts of several are implausible.
  local others = all and math.max(all - ARGV[at + 3], all - ours) or 1
  if others <= 0 and queue and redis.call('exists', queue) == 1 then
    local fine, queued = pcall(live, queue, now)
    others = fine and queued or 0
  end
  if others <= 0 then
    return redis.call('hexists', body, lease) == 0 and 0 or keep(i, next_counter(KEYS[1], ARGV[at + 4], time))
  end
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
  local kind = ARGV[at + 6] == '!' and (blind == '2' or heard ~= 0) and '!' or '?'
  local fine, again = pcall(wait, queue, next_lease, kind, now)
  if not (fine and again) then
    enters = false
    pcall(settle, queue)
    return { others, to, 0 }
  end
  return { others, to, again > 0 and 1 or 2 }
end
for i = 1, count do
  if not replies[i] then
    local fine, reply = true, nil
    if count == 1 then
      reply = decide(i)
    else
      fine, reply = pcall(decide, i)
    end
    -- Redis 6.2 has texts for errors.
    replies[i] = (fine or type(reply) == 'table') and reply or { err = reply }
  end
end
return replies

-- Acquires a lock as acquire.lua, in the order of a queue: confirms a transferred lock, or serves the first
-- waiter of a free one, or enters the queue, or refreshes the place there.
--
-- KEYS[1] lock body, KEYS[2] queue, KEYS[3] fencing counter
-- ARGV[1] lease id, or the name of a shared lease or a permit, ARGV[2] TTL in ms, ARGV[3] channel, ARGV[4] '!' for a
-- waiter that listens, '?' for one that polls, ARGV[5] as `blind` in queue.lua, or 0; for a permit ARGV[6] its limit
-- Reply: granted: as acquire.lua, or if waiters were passed over, {the same, 0, their number}; confirmed: as a repeated
-- grant, with the time since the transfer in ms; waiting: {time in ms until the next attempt can succeed, number of
-- processes in the queue, time until the next attempt of a waiter that polls or 0, as release.lua what became of the
-- free body, or 1}; waiting outside the queue: the first of these and the error that rejected the place,
-- or the first alone; -1 for a key without a TTL.
--
-- With memory full, and for a user without the permissions for sorted sets, the lease stays outside the queue,
-- and its process polls. If the queue is a key of another type, there is no queue. A server that rejects all writes
-- rejects the release of the holder as well: the caller reports that error.
blind = ARGV[5] ~= '0' and ARGV[5]
local body, queue, lease, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[3]
limit = is_permit(lease) and tonumber(ARGV[6]) or 0
local now, left = clock(), redis.call('pttl', body)
-- Returns '!' for a waiter that listens at this server, otherwise '?'. Each call decides it again: a waiter that listens
-- at a replica polls, since this server does not count its subscription.
local function kind()
  return ARGV[4] == '!' and (blind == '2' or is_heard(own_channel(channel, lease))) and '!' or '?'
end
-- Enters the queue, or refreshes the place there.
local function refresh()
  return wait(queue, lease, kind(), now)
end
local again = left ~= -2 and holds(body, lease)
if not again then
  if left == -1 then
    return left
  end
  local queued, outcome = nil, 1
  if left == -2 and redis.call('exists', queue) == 1 then
    pcall(function()
      queued = refresh()
      local turn = tonumber(redis.call('zscore', queue, '~!') or 0)
      if is_ahead(turn, now, TURN) then
        left = turn - now
        return
      end
      local to = transfer(body, queue, channel, now, lease)
      if to == '~' then
        publish(PUBLISH, channel, '0')
        left, outcome = TURN, 3
      elseif to and to ~= lease then
        outcome = 2
        left = redis.call('pttl', body)
      end
    end)
  end
  local mode = mode_of(lease)
  if left ~= -2 and mode and redis.call('hget', body, 'mode') == mode then
    pcall(announce, queue, channel, now)
    local fine, wanted = pcall(is_wanted, queue, channel, now, lease)
    local wait = limit > 0 and full(body, limit, now)
    left = wait or fine and wanted and left or -2
  end
  if left ~= -2 then
    local fine, count = pcall(function()
      if queued == nil then
        queued = refresh()
        -- The turn was used. A client that acquires again without a pause has to compete for the next one.
        if redis.call('zscore', queue, '~!') then
          forget(queue, '~!')
        end
      end
      return queued and live(queue, now)
    end)
    if fine and count then
      outcome = outcome + 10 * passed_over
      return { left, count, queued, outcome }
    elseif not fine then
      -- Redis and Valkey turn an error that `pcall` catches into a text. Another server may return the table.
      refused = type(count) == 'table' and count or redis.error_reply(count)
    end
    return refused and { left, refused } or left
  end
end
local counter, refused = next_counter(KEYS[3], '1', time)
if not counter then
  return refused
end
if not again then
  pcall(forget, queue, lease)
end
local armed = hold(body, lease, tonumber(ARGV[2]), now)
if armed ~= 1 then
  return armed
end
if mode_of(lease) then
  -- The body is written, so a denied read raises no error.
  pcall(admit, body, queue, channel, now)
  if again then
    return { -2 - counter }
  end
elseif again then
  -- The body is written, so a denied read raises no error.
  local fine, kind = pcall(kind)
  local confirm = blind ~= '2' and fine and kind == '!' and CONFIRM or POLLED
  return { -2 - counter, left <= confirm and confirm - left or nil }
end
if passed_over > 0 then
  return { -2 - counter, 0, passed_over }
end
return -2 - counter

-- Appended to share.lua and queue.lua: acquires the locks that are held or have a queue, and replies.
blind = ARGV[1] ~= '0' and ARGV[1]
local function share(i)
  local body, queue, name, channel = KEYS[i], KEYS[count + i], ARGV[4 * i - 2], ARGV[4 * i]
  local now, left = clock(), redis.call('pttl', body)
  local again = left ~= -2 and holds(body, name)
  if not again then
    if left ~= -2 then
      if redis.call('hget', body, 'mode') ~= mode_of(name) then
        return left
      end
      local wait = is_permit(name) and full(body, tonumber(ARGV[4 * i + 1]), now)
      if wait then
        return wait
      end
    end
    -- A queue of a foreign type, or one that this user may not use, is no queue.
    if queue and left ~= -2 then
      pcall(announce, queue, channel, now)
    end
    local fine, wanted = pcall(function()
      return queue and redis.call('exists', queue) == 1 and is_wanted(queue, channel, now, name, name)
    end)
    if fine and wanted then
      return tonumber(wanted) or math.max(left, 0)
    end
  end
  local counter, rejected = next_counter(KEYS[2 * count + 1], '1')
  if not counter then
    return rejected
  end
  local armed = hold(body, name, tonumber(ARGV[4 * i - 1]), now)
  if armed ~= 1 then
    return armed
  end
  if type(counter) == 'string' then
    return counter
  elseif again then
    return { -2 - counter }
  end
  return -2 - counter
end
if count == 1 then
  return replies and replies[1] or share(1)
end
replies = replies or {}
for i = 1, count do
  if later and later[i] then
    local fine, reply = pcall(share, i)
    -- Before 7.0, an error is a text.
    replies[i] = (fine or type(reply) == 'table') and reply or redis.error_reply(reply)
  elseif not replies[i] then
    replies[i] = -2 - first
    first = first + 1
  end
end
return replies

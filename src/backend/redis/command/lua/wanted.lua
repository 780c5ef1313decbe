-- Appended to queue.lua in the scripts that grant shared leases and permits, or renew them.
--
-- Gives the clients that listen outside the queue a place in it: a lock that several leases hold may not become free
-- otherwise.
local function announce(queue, channel, now)
  local due = is_heard_outside(queue, channel, now)
  if due and not redis.call('zscore', queue, '~') and enter(queue, '~', 0) then
    redis.call('pexpire', queue, LIFE)
  end
end
-- Returns true if `own`, a shared lease or a permit, has to wait: a client outside the queue waits before it, or a
-- lease. Shared leases do not wait for each other. Without a place of its own, it comes last. For the intent of an
-- exclusive lease, returns the rest in ms, unless `reader` is of the same process.
local function is_wanted(queue, channel, now, own, reader)
  for _, name in ipairs(redis.call('zrange', queue, 0, 31)) do
    if name == own or string.find(name, '^[!?]') then
      return false
    elseif string.find(name, '^~%^') then
      local left = redis.call('zscore', queue, name) - now
      if left > 0 and not (reader and string.sub(name, 3) == string.sub(reader, 2, 37)) then
        return left
      end
    elseif name == '~' then
      if is_heard_outside(queue, channel, now) then
        return true
      elseif not blind then
        -- With `blind`, clients that the server does not count may still wait for the free lock.
        forget(queue, name)
      end
    elseif name == '~!' or name == '~@' or is_shared(own) and is_shared(name) then
      -- It delays no shared lease.
    elseif deadline(queue, name, now) then
      return true
    end
  end
  return false
end

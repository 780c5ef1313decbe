-- Prepended to the scripts that release.
--
-- `ended` ends a lease. Returns 1 if the body is gone, KEPT if other leases hold it, 0 if the lease did not hold it, or the
-- error of that key. The field of an exclusive lease is the only one of its hash, so HDEL also deletes the
-- body, and no other command is needed. Processes of all versions count the fields of a body and read them so: what a later
-- version adds is a key of its own. The field of a shared lease or a permit has another name, as in share.lua.
local KEPT = -2
local function ended(body, lease)
  local held = redis.pcall('hdel', body, lease)
  if held ~= 0 then
    return held
  end
  local name = 's' .. lease
  local at = redis.pcall('hget', body, name)
  if type(at) == 'boolean' then
    name = 'p' .. lease
    at = redis.pcall('hget', body, name)
  end
  if not at then
    return 0
  elseif type(at) == 'table' then
    -- A user may lack the permission to read the fields. It then has no such lease, unless the permission was withdrawn.
    local own = redis.call('hexists', body, 's' .. lease) + redis.call('hexists', body, 'p' .. lease)
    return own > 0 and at or 0
  end
  local is_permit = string.byte(name) == 112
  local others = redis.call('hlen', body) - (is_permit and 3 or 2)
  if others == 0 then
    redis.call('del', body)
    return 1
  end
  redis.call('hdel', body, name)
  local time = redis.call('time')
  local now, latest = time[1] * 1000 + math.floor(time[2] / 1000), 0
  -- Thousands of permits may hold the body, so they are read only if this one may have been the latest.
  if is_permit and tonumber(at) < now + redis.call('pttl', body) - 1 then
    return tonumber(at) > now and KEPT or 0
  end
  -- The field 'next' of permits is not later than their deadlines.
  local fields, has_expired = redis.call('hgetall', body), false
  for i = 2, #fields, 2 do
    local till = tonumber(fields[i])
    has_expired = has_expired or till and till <= now
    latest = math.max(latest, till or 0)
  end
  if latest <= now then
    redis.call('del', body)
    return 1
  end
  -- A key that always has readers would keep the field of each one that crashed. `full` does this for permits.
  for i = 2, has_expired and not is_permit and #fields or 0, 2 do
    if (tonumber(fields[i]) or now + 1) <= now then
      redis.call('hdel', body, fields[i - 1])
    end
  end
  redis.call('pexpire', body, latest - now)
  return tonumber(at) > now and KEPT or 0
end

-- Reads the holder of a lock, and the length of its queue.
--
-- KEYS[1] lock body, KEYS[2] queue, missing while a slot is moving, or if it is denied
-- Reply: nil when free, otherwise {PTTL, queue, field, count, leases}. `leases` is the number of shared leases or permits,
-- whose field is that of the latest deadline. Without the permission for HGETALL, field and
-- count are missing: the least-privilege user of this crate can only see that a lock is held. The queue is 0
-- without the permissions for sorted sets.
--
-- A forced release reads its holder here.
local left = redis.call('pttl', KEYS[1])
if left == -2 then
  return nil
end
redis.call('hlen', KEYS[1])
local queued = 0
if KEYS[2] then
  local fine, count = pcall(live, KEYS[2], clock())
  queued = fine and count or 0
end
local fields = redis.pcall('hgetall', KEYS[1])
local mode = fields.err or redis.pcall('hget', KEYS[1], 'mode')
if mode ~= 'shared' and mode ~= 'permits' then
  return { left, queued, fields[1], fields[2] }
end
local now, shared, latest, last = clock(), 0, 0, nil
for i = 1, #fields, 2 do
  local at = mode_of(fields[i]) == mode and tonumber(fields[i + 1])
  if at and at > now then
    shared = shared + 1
    if at > latest then
      latest, last = at, fields[i]
    end
  end
end
return { left, queued, last, '1', shared }

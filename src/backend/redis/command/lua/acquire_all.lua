-- Acquires up to 100 different locks that are free, or held by these leases, as acquire.lua.
--
-- KEYS[1] fencing counter, KEYS[i+1] lock bodies
-- ARGV[2i-1] lease id, ARGV[2i] TTL in ms
-- Reply: as share.lua: the first counter, if several are all granted. Otherwise per lock -2 minus the counter, else the
-- holder's PTTL, -1 for a key without a TTL, or the error of that lock.
--
-- The grants have consecutive counters, in order. One EXISTS over all bodies is enough if all are free, which is the
-- usual case. The counter moves once, by the number of possible grants, before any other write: with memory full, INCRBY
-- is rejected. Each free lock then has that error, and the others have their PTTL. `others` has the replies for locks
-- that are not granted.
local others, count, free = nil, #KEYS - 1, #KEYS - 1
if redis.call('exists', unpack(KEYS, 2)) ~= 0 then
  others = {}
  for i = 1, count do
    local left = redis.call('pttl', KEYS[i + 1])
    if left ~= -2 then
      local mine = redis.pcall('hexists', KEYS[i + 1], ARGV[2 * i - 1])
      if mine ~= 1 then
        others[i] = mine == 0 and left or mine
        free = free - 1
      end
    end
  end
end
local first, refused
if free > 0 then
  first, refused = next_counter(KEYS[1], free)
end
for i = 1, count do
  if not (others and others[i]) then
    local key = KEYS[i + 1]
    local answer = refused or redis.pcall('hset', key, ARGV[2 * i - 1], '1')
    if type(answer) ~= 'table' then
      -- A body without a TTL would block its key forever: if PEXPIRE is rejected, it is deleted.
      answer = redis.pcall('pexpire', key, ARGV[2 * i])
      if answer ~= 1 then
        redis.call('del', key)
      end
    end
    if answer ~= 1 then
      others = others or {}
      others[i] = answer
    end
  end
end
if not others then
  return count > 1 and first or -2 - first
end
for i = 1, count do
  if not others[i] then
    others[i] = -2 - first
    first = first + 1
  end
end
return others

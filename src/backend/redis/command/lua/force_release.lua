-- Releases the lock of the holder that the caller has read, and transfers it to its first waiter or notifies
-- the subscribers.
--
-- KEYS[1] lock body, KEYS[2] queue, missing while a slot is moving, or if it is denied
-- ARGV[1] the holder, with the letter of its mode or without, ARGV[2] channel, ARGV[3] as `blind` in queue.lua, or 0,
-- ARGV[4] 1 to spare other leases that share the lock
-- Reply: 1 or above released, as release.lua, 0 not held by this holder.
--
-- A repeated call finds another field or none, so it does not release the lock of the next holder.
blind = ARGV[3] ~= '0' and ARGV[3]
local name
for _, field in ipairs({ ARGV[1], 's' .. ARGV[1], 'p' .. ARGV[1] }) do
  if redis.call('hexists', KEYS[1], field) == 1 then
    name = field
  end
end
if not name then
  return 0
end
if ARGV[4] == '1' and mode_of(name) then
  local held = ended(KEYS[1], string.sub(name, 2))
  if held ~= 1 then
    if KEYS[2] then
      pcall(admit, KEYS[1], KEYS[2], ARGV[2], clock())
    end
    -- Others hold the lock. This lease may have expired before them.
    return held == KEPT and 1 or held
  end
else
  redis.call('del', KEYS[1])
end
if not KEYS[2] then
  publish(PUBLISH, ARGV[2], '0')
  return 1
end
return free(KEYS[1], KEYS[2], ARGV[2])

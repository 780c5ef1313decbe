-- Releases up to 100 leases, and transfers each lock to its first waiter or notifies the subscribers.
--
-- KEYS[1..n] lock bodies, KEYS[n+1..2n] their queues; or bodies alone
-- ARGV[2i-1] lease id, ARGV[2i] channel; then as `blind` in queue.lua, or nothing. Bodies alone are released as if
-- there were no queue: it may be at another node while a slot is moving, or denied.
-- Reply: 1 if all are released. Otherwise per key 0 not held, 1 released, 2 transferred, 3 left to clients outside
-- the queue, plus 10 for each waiter that was passed over; or the error of that key. A rejected message is ignored. A list costs the server as much as a command, so one key has none.
--
-- A repeated call finds no own field, so no latch is needed. One EXISTS shows that no key has a queue, and the
-- functions of the queue are created only for the others. `others` has the replies other than 1.
local others = nil
if count > 1 and not alone then
  queued = redis.pcall('exists', unpack(KEYS, count + 1, 2 * count)) ~= 0
end
-- Otherwise released above.
for i = 1, wanted and 0 or count do
  local held, want = ended(KEYS[i], ARGV[2 * i - 1]), nil
  if held ~= 1 and held ~= KEPT then
    others = others or {}
    others[i] = held
  elseif queued and (count == 1 or redis.pcall('exists', KEYS[count + i]) ~= 0) then
    want = held == 1 and 'queue' or KEPT
  elseif held == 1 then
    want = publish(PUBLISH, ARGV[2 * i], '0') ~= 0 and not alone
  end
  if want then
    wanted = wanted or {}
    wanted[i] = want
  end
end
if not others and not wanted then
  return 1
end
others = others or {}
local function answers()
  if count == 1 then
    return others[1]
  end
  for i = 1, count do
    others[i] = others[i] or 1
  end
  return others
end
if not wanted then
  return answers()
end

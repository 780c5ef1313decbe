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
if wanted then
  -- Released above.
elseif count == 1 and not alone then
  -- A loop and the tables of several keys would cost as much as another command.
  local held = ended(KEYS[1], ARGV[1])
  if held == KEPT and queued then
    wanted = { KEPT }
  elseif held ~= 1 then
    return held == KEPT and 1 or held
  elseif queued then
    wanted = { 'queue' }
  else
    if publish(PUBLISH, ARGV[2], '0') == 0 then
      return 1
    end
    wanted = { true }
  end
else
  queued = not alone and redis.pcall('exists', unpack(KEYS, count + 1, 2 * count)) ~= 0
  for i = 1, count do
    local held = ended(KEYS[i], ARGV[2 * i - 1])
    if held == KEPT then
      if queued and redis.pcall('exists', KEYS[count + i]) ~= 0 then
        wanted = wanted or {}
        wanted[i] = KEPT
      end
    elseif held ~= 1 then
      others = others or {}
      others[i] = held
    elseif queued and redis.pcall('exists', KEYS[count + i]) ~= 0 then
      wanted = wanted or {}
      wanted[i] = 'queue'
    else
      if publish(PUBLISH, ARGV[2 * i], '0') ~= 0 and not alone then
        wanted = wanted or {}
        wanted[i] = true
      end
    end
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

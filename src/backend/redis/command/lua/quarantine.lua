-- Prepended where grants pause after a loss of data: notices it, and tells what is left of the pause.
--
-- The fencing counter is the memory of the data: it is never deleted, so where it is missing data was
-- lost, or there never was any. The quarantine is written before the counter: were the second of
-- them refused, the loss would be noticed again, not hidden. PTTL says what EXISTS would, and needs
-- no permission of its own.
local function quarantined(fence, quarantine, period)
  if redis.call('pttl', fence) == -2 then
    redis.call('set', quarantine, 1, 'px', period)
    next_counter(fence, '1')
    return tonumber(period)
  end
  return math.max(redis.call('pttl', quarantine), 0)
end

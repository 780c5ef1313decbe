-- Prepended if grants pause after a loss of data: detects the loss, and returns the rest of the pause.
-- A process that started within the period may have lost grants, whichever data it loaded.
--
-- The fencing counter is never deleted. If it is missing, data was lost, or there never was any. The
-- quarantine is written before the counter: if the second write is rejected, the next call detects the loss
-- again. PTTL replaces EXISTS, and needs no further permission.
local function quarantined(fence, quarantine, period)
  if redis.call('pttl', fence) == -2 then
    redis.call('set', quarantine, 1, 'px', period)
    next_counter(fence, '1')
    return tonumber(period)
  end
  return math.max(redis.call('pttl', quarantine), after_start(period))
end

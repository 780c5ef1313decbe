-- Prepended with a quarantine: returns the rest of the pause after a start of the server process, or 0.
--
-- A server that restarts from an older snapshot has its counter, but not the last grants. The data do not
-- show that, the age of the process does. The uptime is the difference of two full seconds, and may exceed
-- the age by almost one. The result is below the period, which only a quarantine that begins returns.
local function after_start(period)
  local uptime = string.match(redis.call('info', 'server'), 'uptime_in_seconds:(%d+)')
  local left = period - (uptime - 1) * 1000
  if left <= 0 then
    return 0
  end
  return math.max(math.min(left, period - 1), 1)
end

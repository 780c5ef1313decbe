-- Comes before the acquire where grants pause after a loss of data.
--
-- KEYS[2] fencing counter, KEYS[3] quarantine; ARGV[3] how long it is in ms
-- Answer: the error QUARANTINE with what is left of it in ms; none, and on with the acquire.
--
-- The trial of a new connection says 0 and goes on in a quarantine. Where it would have to begin
-- one, SET refuses the 0, and nothing has changed: a trial hides no loss.
local left = quarantined(KEYS[2], KEYS[3], ARGV[3])
if left > 0 and ARGV[3] ~= '0' then
  return redis.error_reply('QUARANTINE ' .. string.format('%.0f', left))
end

-- Comes before an acquire or a vote where grants pause after a loss of data.
--
-- The last but one of KEYS: fencing counter; the last: quarantine. The last of ARGV: how long it is in ms
-- Answer: the error QUARANTINE with what is left of it in ms; none, and on with what follows.
--
-- The trial of a new connection says 0 and goes on in a quarantine. Where it would have to begin
-- one, SET refuses the 0, and nothing has changed: a trial hides no loss.
local pause = quarantined(KEYS[#KEYS - 1], KEYS[#KEYS], ARGV[#ARGV])
if pause > 0 and ARGV[#ARGV] ~= '0' then
  return redis.error_reply('QUARANTINE ' .. string.format('%.0f', pause))
end

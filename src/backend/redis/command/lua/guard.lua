-- Prepended to an acquire or a vote if grants pause after a loss of data.
--
-- The last two KEYS: fencing counter, quarantine. The last of ARGV: the length of the quarantine in ms
-- Reply: the error QUARANTINE with the rest in ms; without a quarantine, the script continues.
--
-- A self-test passes 0 and continues in a quarantine. If it would have to begin one, SET rejects the 0
-- before any change, so a self-test hides no loss.
local pause = quarantined(KEYS[#KEYS - 1], KEYS[#KEYS], ARGV[#ARGV])
if pause > 0 and ARGV[#ARGV] ~= '0' then
  return redis.error_reply('QUARANTINE ' .. string.format('%.0f', pause))
end

-- Checks for a loss of data before the first acquire, and begins the quarantine after one.
--
-- KEYS[1] fencing counter, KEYS[2] quarantine; ARGV[1] length of the quarantine in ms
-- Reply: the rest in ms, or 0 without a quarantine.
return quarantined(KEYS[1], KEYS[2], ARGV[1])

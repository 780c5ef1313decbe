-- Looks for a loss of data ahead of the first acquire, and begins the quarantine after one.
--
-- KEYS[1] fencing counter, KEYS[2] quarantine; ARGV[1] how long it is in ms
-- Answer: what is left of it in ms, 0 when there is none.
return quarantined(KEYS[1], KEYS[2], ARGV[1])

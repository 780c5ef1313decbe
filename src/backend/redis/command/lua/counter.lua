-- Takes the fencing counter of a grant whose lock body is at another node.
--
-- KEYS[1] fencing counter
-- ARGV[1] the length of a quarantine in ms, 0 for a self-test; only while a loss of data is undetected
-- Reply: the counter, nil if it is missing, or the error QUARANTINE with the rest in ms after a start.
if ARGV[1] then
  if redis.call('pttl', KEYS[1]) == -2 then
    return nil
  end
  local pause = after_start(ARGV[1])
  if pause > 0 and ARGV[1] ~= '0' then
    return redis.error_reply('QUARANTINE ' .. string.format('%.0f', pause))
  end
end
local counter, refused = next_counter(KEYS[1], '1')
return counter or refused

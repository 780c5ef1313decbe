-- Takes the fencing counter of a grant whose lock body is at another node.
--
-- KEYS[1] fencing counter
-- ARGV[1] 1 if a missing counter shows a loss of data, which remains to be seen
-- Reply: the counter, or nil if it is missing.
if ARGV[1] == '1' and redis.call('pttl', KEYS[1]) == -2 then
  return nil
end
local counter, refused = next_counter(KEYS[1], '1')
return counter or refused

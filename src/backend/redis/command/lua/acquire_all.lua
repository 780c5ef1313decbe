-- Takes up to 100 locks that are free, or held by these very leases: `acquire`, many at once.
--
-- KEYS[1] fencing counter, KEYS[i+1] lock bodies
-- ARGV[2i-1] lease id, ARGV[2i] time to live in ms
-- Answer: the first of the counters, nil if nothing is granted; then for each lock
-- -3 granted, else the holder's PTTL, -1 when what stands there has no end, or the error of that lock
-- alone. -2 where it was free, but stands in KEYS twice, and the first of the two got it.
--
-- Those granted have the counters that follow the first, in their order: with each of them written
-- out the answer would be up to four times as long. One look at all bodies at once is enough where
-- all are free, as they mostly are. The counter moves once, by as many as may be granted, and before
-- anything is written: with memory full that is refused, and then nothing is granted.
local answers, free, seen = { false }, {}, {}
local all_free = redis.call('exists', unpack(KEYS, 2)) == 0
for i = 1, #KEYS - 1 do
  local key = KEYS[i + 1]
  local left = all_free and -2 or redis.call('pttl', key)
  if left ~= -2 then
    local mine = redis.pcall('hexists', key, ARGV[2 * i - 1])
    if mine == 1 then
      left = -2
    elseif mine ~= 0 then
      left = mine
    end
  end
  if left == -2 and not seen[key] then
    seen[key] = true
    free[#free + 1] = i
  end
  answers[i + 1] = left
end
if #free == 0 then
  return answers
end
answers[1] = next_counter(KEYS[1], #free)
for _, i in ipairs(free) do
  local key = KEYS[i + 1]
  local answer = redis.pcall('hset', key, ARGV[2 * i - 1], '1')
  if type(answer) ~= 'table' then
    -- A body without an end would block its key for ever: if PEXPIRE is refused, take it back.
    local armed = redis.pcall('pexpire', key, ARGV[2 * i])
    if armed == 1 then
      answer = -3
    else
      redis.call('del', key)
      answer = armed
    end
  end
  answers[i + 1] = answer
end
return answers

-- Acquires up to 100 locks that are free, or held by these leases, as acquire.lua.
--
-- KEYS[1] fencing counter, KEYS[i+1] lock bodies
-- ARGV[2i-1] lease id, ARGV[2i] TTL in ms
-- Reply: the first counter, or nil without a grant; then per lock -3 granted, else the holder's PTTL, -1 for
-- a key without a TTL, or the error of that lock. -2 for the second entry of a free lock that KEYS lists
-- twice.
--
-- The grants have consecutive counters, in order. A list of counters would make the reply up to four times
-- as long. One EXISTS over all bodies is enough if all are free, which is the usual case. The counter moves
-- once, by the number of possible grants, before any other write: with memory full, INCRBY is refused. Each
-- free lock then has that error, and the others have their PTTL.
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
local first, refused = next_counter(KEYS[1], #free)
if not first then
  for _, i in ipairs(free) do
    answers[i + 1] = refused
  end
  return answers
end
answers[1] = first
for _, i in ipairs(free) do
  local key = KEYS[i + 1]
  local answer = redis.pcall('hset', key, ARGV[2 * i - 1], '1')
  if type(answer) ~= 'table' then
    -- A body without a TTL would block its key for ever: if PEXPIRE is refused, it is deleted.
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

-- Prepended to share.lua in place of fence.lua: the counter that the nodes of a quorum agree on, as in vote.lua.
--
-- ARGV[6] the counter, proposed or confirmed, ARGV[7] 1 to confirm
local function next_counter(key)
  local last = redis.call('get', key)
  if not last and ARGV[7] ~= '1' then
    return '0'
  end
  local counter = ARGV[6]
  if last and tonumber(last) >= tonumber(counter) then
    counter = string.format('%.0f', tonumber(last) + 1)
  end
  redis.call('set', key, counter)
  return counter
end

-- Prepended to vote.lua, and to share.lua in place of fence.lua: the counter that the nodes of a quorum agree on.
--
-- A missing counter may have been lost with the data. A proposal does not recreate it, only a confirmation
-- by the majority. Until then, this node reports that it has none.
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

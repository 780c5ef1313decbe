-- As publish.lua, for messages of both kinds. Returns the number of receivers of one kind, unless it is 0 for both, or
-- an error of either kind.
local PUBLISH, NUMSUB, ALSO = 'publish', 'numsub', 'shardnumsub'
local function publish(command, channel, message)
  local plain = redis.pcall(command, channel, message)
  local sharded = redis.pcall('spublish', channel, message)
  if plain == 0 or type(sharded) == 'table' then
    return sharded
  end
  return plain
end

-- As publish.lua, for sharded messages.
local publish, PUBLISH, NUMSUB, ALSO = redis.pcall, 'spublish', 'shardnumsub', nil

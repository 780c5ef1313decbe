-- As publish.lua, for sharded messages.
local publish, PUBLISH = redis.pcall, 'spublish'

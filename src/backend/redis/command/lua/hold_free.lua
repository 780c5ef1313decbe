-- Prepended to queue.lua, and to the part of share.lua before it.
--
-- Writes the name of a shared lease or a permit into a body that does not exist, with its deadline in ms as a text.
-- Returns 1. Otherwise returns the reply that rejects it, and leaves no body: without a TTL, a body would block its key
-- forever.
local function hold_free(body, name, ttl, till)
  local written
  if string.byte(name) == 112 then
    written = redis.pcall('hset', body, 'mode', 'permits', 'next', till, name, till)
  else
    written = redis.pcall('hset', body, 'mode', 'shared', name, till)
  end
  if type(written) == 'table' then
    return written
  end
  local armed = redis.pcall('pexpire', body, ttl)
  if armed ~= 1 then
    redis.call('del', body)
  end
  return armed
end

-- Prepended to `release`, before the functions of other calls: most calls are this one, and the creation of functions
-- would cost it a part of a command. KEYS, ARGV and the reply are as in release.lua.
--
-- Releases one exclusive lease of a lock without a queue. Its field is the only one of its hash, so HDEL also deletes
-- the body. `wanted` has 'queue' for a key with a queue, true for one whose message has a receiver or was rejected, and
-- KEPT for one with a queue that other leases hold.
local count = (#ARGV - #ARGV % 2) / 2
local alone, queued, wanted = #KEYS == count, false, nil
if count == 1 and not alone then
  queued = redis.pcall('exists', KEYS[2]) ~= 0
  if not queued and redis.pcall('hdel', KEYS[1], ARGV[1]) == 1 then
    if publish(PUBLISH, ARGV[2], '0') == 0 then
      return 1
    end
    wanted = { true }
  end
end

-- Writes keys of several slots.
--
-- KEYS names of several slots; ARGV[1] TTL in s
-- Reply: 0, or CROSSSLOT from a server that has the keys at several servers by slot.
for _, name in ipairs(KEYS) do
    redis.call('HSET', name, '1', 1)
    redis.call('PEXPIRE', name, 1000 * ARGV[1])
end
return 0

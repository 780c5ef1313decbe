-- Prepended to the scripts that release: `publish(PUBLISH, channel, '0')` publishes a release. Returns the number of
-- receivers that the server counts, or an error. It is no function of its own, since each call would create it. NUMSUB
-- counts subscribers, and so does ALSO for messages of both kinds.
--
-- A message that is denied fails no command: the lock is free, waiters poll, and the reply contains it. Redisson
-- parses the message as a number, and '0' means "unlocked".
local publish, PUBLISH, NUMSUB, ALSO = redis.pcall, 'publish', 'numsub', nil

-- Prepended to queue.lua in place of numbered.lua if a grant requires more than its transfer: replicas that
-- acknowledge it, a check for a quarantine, or a counter of Redisson.
local FENCE
local function next_number() end
local function last_number() end

-- For wrk: each request has another path and so another lock, which no earlier run has used.
-- `wrk` ends without its last responses, and their locks may stay held for up to 30 s.
local run = os.time() % 100
local requests = 0

function request()
  requests = requests + 1
  return wrk.format("PUT", "/orders/" .. run .. "-" .. requests)
end

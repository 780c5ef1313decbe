-- For wrk: another path, and so another lock, for each request, and none that an earlier run has used:
-- `wrk` leaves without its last answers, and what it asked for may stay locked for up to 30 s.
local run = os.time() % 100
local requests = 0

function request()
  requests = requests + 1
  return wrk.format("PUT", "/orders/" .. run .. "-" .. requests)
end

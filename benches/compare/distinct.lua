-- For wrk: another path, and so another lock, for each request. Also of the runs before: `wrk` leaves
-- without its last answers, and what it asked for may still be locked, for up to 30 s.
local run = os.time() % 100
local requests = 0

function request()
  requests = requests + 1
  return wrk.format("PUT", "/orders/" .. run .. "-" .. requests)
end

-- For wrk: another path, and so another lock, for each request.
local requests = 0

function request()
  requests = requests + 1
  return wrk.format("PUT", "/orders/" .. requests)
end

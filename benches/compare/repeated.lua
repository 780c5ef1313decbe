-- For wrk: 64 paths in turns, so that each lock comes back after a round of the others.
local run = os.time() % 100
local paths, requests = {}, 0

function init()
  for path = 1, 64 do
    paths[path] = wrk.format("PUT", "/orders/" .. run .. "-" .. path)
  end
end

function request()
  requests = requests % 64 + 1
  return paths[requests]
end

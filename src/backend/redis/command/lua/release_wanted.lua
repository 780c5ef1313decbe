-- Appended to release.lua and queue.lua: serves the queues and the clients outside of them.
blind = ARGV[2 * count + 1]
for i = 1, count do
  if wanted[i] == KEPT then
    -- A permit is free for the next waiter.
    pcall(admit, KEYS[i], KEYS[count + i], ARGV[2 * i], clock())
    others[i] = 1
  elseif wanted[i] then
    others[i] = free(KEYS[i], KEYS[count + i], ARGV[2 * i], wanted[i] == true)
  end
end
return answers()

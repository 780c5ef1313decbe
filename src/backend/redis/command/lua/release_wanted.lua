-- Appended to release.lua and queue.lua: serves the queues and the clients outside of them.
blind = ARGV[2 * count + 1]
for i = 1, count do
  if not answers[i] then
    answers[i] = free(KEYS[i], KEYS[count + i], ARGV[2 * i], told and told[i])
  end
end
if count == 1 then
  return answers[1]
end
return answers

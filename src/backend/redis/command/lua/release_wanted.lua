-- Appended to release.lua and queue.lua: serves the queues and the clients outside of them.
blind = ARGV[#KEYS + 1]
for i = 1, count do
  if not answers[i] then
    answers[i] = free(KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i], told and told[i])
  end
end
if count == 1 then
  return answers[1]
end
return answers

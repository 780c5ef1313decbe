-- The script `release` of a version in which the message of a transfer was the grant, without its comments.
local publish, PUBLISH = redis.pcall, 'publish'
local count = (#ARGV - #ARGV % 2) / 2
local alone, queued, wanted = #KEYS == count, false, nil
if count == 1 and not alone then
  queued = redis.pcall('exists', KEYS[2]) ~= 0
  if not queued and redis.pcall('hdel', KEYS[1], ARGV[1]) == 1 then
    if publish(PUBLISH, ARGV[2], '0') == 0 then
      return 1
    end
    wanted = { true }
  end
end
local KEPT = -2
local function ended(body, lease)
  local held = redis.pcall('hdel', body, lease)
  if held ~= 0 then
    return held
  end
  local name = 's' .. lease
  local at = redis.pcall('hget', body, name)
  if type(at) == 'boolean' then
    name = 'p' .. lease
    at = redis.pcall('hget', body, name)
  end
  if not at then
    return 0
  elseif type(at) == 'table' then
    local own = redis.call('hexists', body, 's' .. lease) + redis.call('hexists', body, 'p' .. lease)
    return own > 0 and at or 0
  end
  local is_permit = string.byte(name) == 112
  local others = redis.call('hlen', body) - (is_permit and 3 or 2)
  if others == 0 then
    redis.call('del', body)
    return 1
  end
  redis.call('hdel', body, name)
  local time = redis.call('time')
  local now, latest = time[1] * 1000 + math.floor(time[2] / 1000), 0
  if is_permit and tonumber(at) < now + redis.call('pttl', body) - 1 then
    return tonumber(at) > now and KEPT or 0
  end
  local fields, has_expired = redis.call('hgetall', body), false
  for i = 2, #fields, 2 do
    local till = tonumber(fields[i])
    has_expired = has_expired or till and till <= now
    latest = math.max(latest, till or 0)
  end
  if latest <= now then
    redis.call('del', body)
    return 1
  end
  for i = 2, has_expired and not is_permit and #fields or 0, 2 do
    if (tonumber(fields[i]) or now + 1) <= now then
      redis.call('hdel', body, fields[i - 1])
    end
  end
  redis.call('pexpire', body, latest - now)
  return tonumber(at) > now and KEPT or 0
end
local others = nil
if wanted then
elseif count == 1 and not alone then
  local held = ended(KEYS[1], ARGV[1])
  if held == KEPT and queued then
    wanted = { KEPT }
  elseif held ~= 1 then
    return held == KEPT and 1 or held
  elseif queued then
    wanted = { 'queue' }
  else
    if publish(PUBLISH, ARGV[2], '0') == 0 then
      return 1
    end
    wanted = { true }
  end
else
  queued = not alone and redis.pcall('exists', unpack(KEYS, count + 1, 2 * count)) ~= 0
  for i = 1, count do
    local held = ended(KEYS[i], ARGV[2 * i - 1])
    if held == KEPT then
      if queued and redis.pcall('exists', KEYS[count + i]) ~= 0 then
        wanted = wanted or {}
        wanted[i] = KEPT
      end
    elseif held ~= 1 then
      others = others or {}
      others[i] = held
    elseif queued and redis.pcall('exists', KEYS[count + i]) ~= 0 then
      wanted = wanted or {}
      wanted[i] = 'queue'
    else
      if publish(PUBLISH, ARGV[2 * i], '0') ~= 0 and not alone then
        wanted = wanted or {}
        wanted[i] = true
      end
    end
  end
end
if not others and not wanted then
  return 1
end
others = others or {}
local function answers()
  if count == 1 then
    return others[1]
  end
  for i = 1, count do
    others[i] = others[i] or 1
  end
  return others
end
if not wanted then
  return answers()
end
local function next_counter(key, count, time)
  local top = redis.pcall('incrby', key, count)
  if type(top) == 'table' then
    local says = function(what) return string.find(top.err, what, 1, true) end
    if says('OOM') or says('NOREPLICAS') or says('MISCONF') then
      return nil, top
    end
    if says('WRONGTYPE') or says('not an integer') then
      error('FENCE the fencing counter ' .. key .. ' holds something else', 0)
    end
    top = redis.call('incrby', key, count)
  end
  local now = time or redis.call('time')
  local behind = now[1] * 1000000 + now[2] - top
  if behind > 1000 then
    top = redis.call('incrby', key, behind)
  end
  return top - count + 1
end
local FENCE = 'lock:{fencing-token}%'
local function next_number(key, time)
  local fine, counter = pcall(next_counter, key, '1', time)
  return fine and counter
end
local function last_number(key, now)
  local last = redis.pcall('incrby', key, '0')
  return type(last) == 'number' and math.max(last, (now - 1) * 1000) or nil
end
local function listeners(channel, ...)
  local counts = redis.call('pubsub', 'numsub', channel, channel .. '%w', ...)
  return counts[2], counts[4], counts[6]
end
local function is_heard(channel)
  return redis.call('pubsub', 'numsub', channel)[2] ~= 0
end
local function wake(channel, message)
  return redis.pcall('publish', channel, message)
end
local function hold_free(body, name, ttl, till)
  local written
  if string.byte(name) == 112 then
    written = redis.pcall('hset', body, 'mode', 'permits', 'next', till, name, till)
  else
    written = redis.pcall('hset', body, 'mode', 'shared', name, till)
  end
  if type(written) == 'table' then
    return written
  end
  local armed = redis.pcall('pexpire', body, ttl)
  if armed ~= 1 then
    redis.call('del', body)
  end
  return armed
end
local LIFE, CONFIRM, POLLED, ALIVE, STEP, POLL, TURN, PAUSE = '6000', 1500, 300, 3000, 3, 100, 10, 500
local MOST = 1e6
local passed_over = 0
local refused
local blind
local fence
local transferred
local enters
local limit = 0
local time, read
local function clock()
  if not read then
    time = redis.call('time')
    read = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return read
end
local function is_ahead(mark, now, span)
  return mark > now and mark <= now + span
end
local function is_shared(name)
  return string.byte(name) == 115
end
local function is_permit(name)
  return string.byte(name) == 112
end
local function mode_of(name)
  return is_shared(name) and 'shared' or is_permit(name) and 'permits' or nil
end
local function holds(body, name)
  if not mode_of(name) then
    return redis.call('hexists', body, name) == 1
  end
  return tonumber(redis.call('hget', body, name) or 0) > clock()
end
local function counted(channel, ...)
  local all, ours, heard = listeners(channel, ...)
  if math.max(all, ours) <= MOST then
    return all, ours, heard
  end
  blind = blind or '1'
  return nil, nil, heard
end
local function is_turn_due(queue, channel, now, outside)
  if not blind and outside == nil then
    local all, ours = counted(channel)
    outside = all and all > ours
  end
  if blind then
    local due = redis.pcall('zscore', queue, '~@')
    return not due or type(due) ~= 'table' and not is_ahead(tonumber(due), now, PAUSE)
  end
  return outside
end
local function is_heard_outside(queue, channel, now)
  local fine, all, ours = pcall(counted, channel)
  return fine and all and all > ours and is_turn_due(queue, channel, now, true)
end
local function settle(queue, places)
  if not enters and (places or redis.call('zcount', queue, '-inf', '1e12')) == 0 then
    redis.call('pexpire', queue, blind and PAUSE or TURN)
  end
end
local function begin_turn(queue, now)
  local places = redis.call('zcount', queue, '-inf', '1e12')
  if type(redis.pcall('zadd', queue, now + TURN, '~!')) == 'table' then
    return false
  end
  if blind then
    redis.pcall('zadd', queue, now + PAUSE, '~@')
  end
  settle(queue, places)
  return true
end
local function live(queue, now)
  local count = redis.call('zcount', queue, '(' .. now, '+inf')
  for _, mark in ipairs({ '~!', '~@' }) do
    local till = redis.call('zscore', queue, mark)
    if till and tonumber(till) > now then
      count = count - 1
    end
  end
  return count
end
local function pace(ahead)
  return math.min(STEP * (ahead + 1), POLL)
end
local function forget(queue, lease)
  redis.call('zrem', queue, lease, '!' .. lease, '?' .. lease)
  settle(queue)
end
local function enter(queue, member, fraction, ...)
  local last = redis.call('zrevrangebyscore', queue, '1e12', '-inf', 'withscores', 'limit', '0', '1')[2]
  local added = redis.pcall('zadd', queue, math.floor(last or 0) + 1 + fraction, member, ...)
  if type(added) == 'table' then
    refused = added
    return false
  end
  return true
end
local function own_channel(channel, name)
  local first = mode_of(name) and 2 or 1
  return channel .. '%' .. string.sub(name, first, first + 35)
end
local function deadline(queue, name, now)
  local heard = redis.call('zscore', queue, '!' .. name)
  local till = tonumber(heard or redis.call('zscore', queue, '?' .. name) or 0)
  if till > now then
    return till, heard
  end
end
local function full(body, most, now)
  if redis.call('hlen', body) - 2 < most then
    return nil
  end
  local next = tonumber(redis.call('hget', body, 'next') or 0)
  if next > now then
    return next - now
  end
  local fields, count = redis.call('hgetall', body), 0
  next = nil
  for i = 1, #fields, 2 do
    local name = fields[i]
    if is_permit(name) then
      local at = tonumber(fields[i + 1])
      if at <= now then
        redis.call('hdel', body, name)
      else
        count = count + 1
        next = math.min(next or at, at)
      end
    end
  end
  redis.pcall('hset', body, 'next', string.format('%.0f', next or now))
  if count < most then
    return nil
  end
  return next - now
end
local function fits(body, mode, queue, name, now)
  if mode_of(name) ~= mode then
    return false
  elseif mode == 'shared' then
    return true
  end
  local ticket = tonumber(redis.call('zscore', queue, name) or 0)
  return not full(body, math.floor(ticket % 1 * 65536 + 0.5), now)
end
local function wait(queue, lease, kind, now)
  local ticket = redis.call('zscore', queue, lease)
  local ahead = kind == '?' and redis.call('zcount', queue, '-inf', ticket and '(' .. ticket or '1e12')
  local again = ahead and pace(ahead) or 0
  local deadline, mark = now + again + ALIVE, kind .. lease
  if ticket then
    redis.call('zrem', queue, (kind == '!' and '?' or '!') .. lease)
    redis.call('zadd', queue, deadline, mark)
  elseif not enter(queue, lease, limit / 65536, deadline, mark) then
    return false
  end
  redis.call('pexpire', queue, LIFE)
  return again
end
local function hold(body, name, ttl, now)
  local mode = mode_of(name)
  if not mode then
    redis.call('hset', body, name, '1')
    local armed = redis.pcall('pexpire', body, ttl)
    if armed ~= 1 then
      redis.call('del', body)
    end
    return armed
  end
  local left = redis.call('pttl', body)
  local held = redis.call('hget', body, name)
  local till = math.max(now + ttl, tonumber(held or 0))
  local text = string.format('%.0f', till)
  if left == -2 then
    redis.call('hgetall', body)
    return hold_free(body, name, ttl, text)
  end
  if mode == 'permits' then
    local next = math.min(tonumber(redis.call('hget', body, 'next') or 0), till)
    redis.call('hset', body, 'mode', mode, 'next', string.format('%.0f', next), name, text)
  else
    redis.call('hset', body, 'mode', mode, name, text)
  end
  local armed = redis.pcall('pexpire', body, math.max(left, ttl))
  if armed ~= 1 then
    redis.call('hdel', body, name)
  end
  return armed
end
local function give(body, queue, lease, ttl, others, now, channel)
  if others and not redis.call('zscore', queue, '~') then
    enter(queue, '~', 0)
  end
  forget(queue, lease)
  if hold(body, lease, ttl, now) ~= 1 then
    return false
  end
  if channel then
    transferred = fence and next_number(fence, time)
    local id = mode_of(lease) and string.sub(lease, 2) or lease
    wake(channel, transferred and id .. string.format(' %.0f', transferred) or id)
  end
  return lease
end
local function serve(body, queue, channel, now, own, others, beside)
  local asleep
  for index, lease in ipairs(redis.call('zrange', queue, '0', '31')) do
    if lease == '~' and beside then
      if is_heard_outside(queue, channel, now) then
        return false
      elseif not blind then
        forget(queue, lease)
      end
    elseif lease == '~' then
      forget(queue, lease)
      if others and begin_turn(queue, now) then
        return '~'
      end
    elseif lease == own then
      return own
    elseif string.find(lease, '^[!?~]') then
      break
    else
      local till, heard = deadline(queue, lease, now)
      if not till then
        passed_over = passed_over + 1
        forget(queue, lease)
      elseif beside and not fits(body, beside, queue, lease, now) then
        return false
      elseif not heard then
        if till - ALIVE <= now + pace(index - 1) then
          return give(body, queue, lease, POLLED, others, now)
        end
        asleep = asleep or lease
      else
        local own = own_channel(channel, lease)
        if blind == '2' then
          return give(body, queue, lease, POLLED, others, now, own)
        elseif is_heard(own) then
          return give(body, queue, lease, CONFIRM, others, now, own)
        end
      end
    end
  end
  return asleep and not beside and give(body, queue, asleep, POLLED, others, now)
end
local function admit(body, queue, channel, now, own)
  local mode = redis.call('hget', body, 'mode')
  for _ = 1, mode and 32 or 0 do
    local to = serve(body, queue, channel, now, own, false, mode)
    if not to or to == own then
      return
    end
  end
end
local function transfer(body, queue, channel, now, own, outside)
  local to = serve(body, queue, channel, now, own, is_turn_due(queue, channel, now, outside))
  if to and to ~= own and to ~= '~' and mode_of(to) then
    pcall(admit, body, queue, channel, now, own)
  end
  return to
end
local function free(body, queue, channel, published, outside)
  local _, now = pcall(clock)
  passed_over = 0
  if published then
    if blind then
      return 1
    end
  else
    local fine, to = pcall(transfer, body, queue, channel, now, nil, outside)
    if fine and to and to ~= '~' then
      return 2 + 10 * passed_over
    end
    publish(PUBLISH, channel, '0')
    if fine and to then
      return 3 + 10 * passed_over
    end
  end
  local fine, turn = pcall(is_turn_due, queue, channel, now, outside)
  if fine and turn then
    fine, turn = pcall(begin_turn, queue, now)
  end
  return (fine and turn and 3 or 1) + 10 * passed_over
end
blind = ARGV[2 * count + 1]
fence = KEYS[2 * count + 1] or not blind and FENCE
for i = 1, count do
  if wanted[i] == KEPT then
    pcall(admit, KEYS[i], KEYS[count + i], ARGV[2 * i], clock())
    others[i] = 1
  elseif wanted[i] then
    others[i] = free(KEYS[i], KEYS[count + i], ARGV[2 * i], wanted[i] == true)
  end
end
return answers()

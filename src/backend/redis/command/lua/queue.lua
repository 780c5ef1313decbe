-- Prepended to the scripts that use the queue of a lock's waiters, after the messages and `listeners`.
--
-- The queue is a sorted set with these members:
--   <lease id>    the place of a process; its score is a ticket, a whole number above the last ticket
--   !<lease id>   the deadline of a waiter that listens at this server, in ms of the server's clock
--   ?<lease id>   the deadline of a waiter that polls, counted from its next attempt
--   s<lease id>   the place of a shared lease, which has its deadline under !s<lease id> or ?s<lease id>
--   p<lease id>   the same of a permit; its ticket has a fraction, the limit of the permit divided by 65,536
--   ~             the place of the clients that listen outside the queue: Redisson, versions without the queue
--   ~!            the end of their turn
--   ~@            the time of their next turn, where the server cannot count them
--   ~^<manager>   the deadline until which an exclusive lease waits that votes, as in vote.lua. Leases that vote have no
--                 places.
-- Tickets are small, and deadlines are above 1e12, so all places come first. A key that does not exist has the effect
-- of an empty queue, so every write of a new key also sets its TTL.
--
-- The message of a transfer is '<lease id>'. It is a hint: the process confirms the transfer by a `contend`, whose reply
-- is the grant. So a message that is late, or arrives twice, grants nothing. A version before this one also sends
-- '<lease id> <counter>'.
--
-- CONFIRM, POLLED: the TTL of a transferred lease until its process confirms it. Processes of several
-- versions share a queue, so a version with a shorter CONFIRM needs another message. ALIVE: a waiter refreshes its
-- deadline every second. STEP, POLL: a waiter that polls attempts after STEP for each place up to its own, at most
-- after POLL. TURN: the time in which clients outside the queue can acquire a free lock. PAUSE: the time between
-- two of their turns where they cannot be counted.
-- MOST: a larger number of subscribers is no count. Valkey 9.1 returns hundreds of millions for 8, 15, 16 and more.
-- LIFE: the TTL of a queue with places, as a text: Redis 7.0 prints a number to 17 digits for a command.
local LIFE, CONFIRM, POLLED, ALIVE, STEP, POLL, TURN, PAUSE = '6000', 1500, 300, 3000, 3, 100, 10, 500
local MOST = 1e6
-- The number of waiters that `transfer` has removed because their deadlines had passed.
local passed_over = 0
-- The error with which the server rejected a place in the queue, or nil.
local refused
-- '1': clients outside the queue may listen elsewhere. '2': the receivers of this crate may listen elsewhere
-- as well. Otherwise nil.
local blind
-- True if the caller enters the queue afterwards, and sets the TTL of the queue.
local enters
-- The limit of the permit that the caller asks for, or 0.
local limit = 0
-- The time of the server, read once: as TIME returns it, and in ms.
local time, read
local function clock()
  if not read then
    time = redis.call('time')
    read = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return read
end
-- Returns true if the time of a mark has not come yet. A mark further ahead than it was ever set is from before a
-- step back of the clock, or from a server whose clock is ahead, and would block the key until then.
local function is_ahead(mark, now, span)
  return mark > now and mark <= now + span
end
-- Returns true for the name of a shared lease, in the body and in the queue: 's' before its id, which begins with a
-- hexadecimal digit.
local function is_shared(name)
  return string.byte(name) == 115
end
-- Returns true for the name of a permit: 'p' before its id.
local function is_permit(name)
  return string.byte(name) == 112
end
-- Returns the mode of a body that this lease and others can hold, or nil for an exclusive lease.
local function mode_of(name)
  return is_shared(name) and 'shared' or is_permit(name) and 'permits' or nil
end
-- Returns true if the lease with this name holds the body. One of several may have expired before the body.
local function holds(body, name)
  if not mode_of(name) then
    return redis.call('hexists', body, name) == 1
  end
  return tonumber(redis.call('hget', body, name) or 0) > clock()
end
-- Returns the numbers of `listeners`. If one is implausible, returns nil for the first two, and the script continues as
-- where clients outside the queue cannot be counted.
local function counted(channel, ...)
  local all, ours, heard = listeners(channel, ...)
  if math.max(all, ours) <= MOST then
    return all, ours, heard
  end
  blind = blind or '1'
  return nil, nil, heard
end
-- Returns true if clients outside the queue are due a turn. `outside`: whether they listen, if the caller has
-- counted them.
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
-- Returns true if clients outside the queue listen at this server and are due a turn. A lock that several leases hold
-- becomes free only for clients that exist: their turn delays the other leases. Without the permission to count, or
-- with an implausible count, none exists.
local function is_heard_outside(queue, channel, now)
  local fine, all, ours = pcall(counted, channel)
  return fine and all and all > ours and is_turn_due(queue, channel, now, true)
end
-- Sets the TTL of a queue without places to that of its marks, unless the caller enters it.
local function settle(queue, places)
  if not enters and (places or redis.call('zcount', queue, '-inf', '1e12')) == 0 then
    redis.call('pexpire', queue, blind and PAUSE or TURN)
  end
end
-- Begins the turn of the clients outside the queue. Returns false if the server rejects it. The read comes first: if it
-- is denied, there is no mark without a TTL.
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
-- Returns the number of processes in the queue whose deadlines have not passed.
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
-- Returns the time in ms until the next attempt of a waiter that polls, with `ahead` places before its own.
local function pace(ahead)
  return math.min(STEP * (ahead + 1), POLL)
end
local function forget(queue, lease)
  redis.call('zrem', queue, lease, '!' .. lease, '?' .. lease)
  settle(queue)
end
-- Gives a new member the last place, with these scores and members besides. Returns false if the server rejects it,
-- as with full memory.
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
-- Returns the deadline of a place in ms and whether its waiter listens, or nil if it has passed.
local function deadline(queue, name, now)
  local heard = redis.call('zscore', queue, '!' .. name)
  local till = tonumber(heard or redis.call('zscore', queue, '?' .. name) or 0)
  if till > now then
    return till, heard
  end
end
-- Returns the time in ms after which a permit may be free, or nil if one is. A body with permits has a field for each
-- with its deadline, 'mode', and 'next', which no deadline precedes. So most calls count the fields, and read none.
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
  -- A server with full memory rejects it, and the next call reads the fields again.
  redis.pcall('hset', body, 'next', string.format('%.0f', next or now))
  if count < most then
    return nil
  end
  return next - now
end
-- Returns true if the place of this name may hold the body beside the leases of `mode`, which hold it.
local function fits(body, mode, queue, name, now)
  if mode_of(name) ~= mode then
    return false
  elseif mode == 'shared' then
    return true
  end
  local ticket = tonumber(redis.call('zscore', queue, name) or 0)
  return not full(body, math.floor(ticket % 1 * 65536 + 0.5), now)
end
-- Enters a lease, or refreshes its deadline. `kind` is '!' for a waiter that listens at this server, otherwise '?'.
-- Returns the time in ms until the next attempt of a waiter that polls, 0 for one that listens, or false if the server
-- rejects it.
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
-- Writes a lease into the body. Returns 1, or the reply that rejects it.
local function hold(body, name, ttl, now)
  -- A body without a TTL would block its key forever: if PEXPIRE is rejected, the body is deleted.
  local mode = mode_of(name)
  if not mode then
    redis.call('hset', body, name, '1')
    local armed = redis.pcall('pexpire', body, ttl)
    if armed ~= 1 then
      redis.call('del', body)
    end
    return armed
  end
  -- A repeat does not shorten the lease, because the body would outlive it.
  local left = redis.call('pttl', body)
  local held = redis.call('hget', body, name)
  local till = math.max(now + ttl, tonumber(held or 0))
  local text = string.format('%.0f', till)
  if left == -2 then
    -- The first lease tries the reads that its renewal and its release need: if they are denied, it is not granted.
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
-- Removes a waiter from the queue, and transfers the body to it, which is free or has room for it. Returns the lease, or
-- false if the server rejects it. With a channel, then notifies the waiter.
local function give(body, queue, lease, ttl, others, now, channel)
  if others and not redis.call('zscore', queue, '~') then
    enter(queue, '~', 0)
  end
  forget(queue, lease)
  if hold(body, lease, ttl, now) ~= 1 then
    return false
  end
  if channel then
    wake(channel, mode_of(lease) and string.sub(lease, 2) or lease)
  end
  return lease
end
-- Transfers the free body to the first waiter. Returns its lease, or '~' when the turn of the clients outside the
-- queue began, or false without a waiter. Returns `own` without a transfer when that lease is next.
--
-- A waiter that no message reaches keeps its place: its process may be about to subscribe again. A waiter whose
-- deadline has passed is removed. A place is removed before the body is written: if that is denied, nothing is
-- transferred. Only the first 32 places are checked, since other clients have to wait for the script.
--
-- A waiter that polls keeps its place while it sleeps, since the lock would be idle until its next attempt. It
-- sleeps if its next attempt is further away than from an attempt at its present place. So a waiter sleeps only
-- after places before its own became free. The first one that polls is served by the first release after its next
-- attempt, which comes within POLL. If all waiters sleep, the first one is served.
--
-- `beside`: the mode of the leases that hold the body, so only waiters that fit are served, up to the first that does
-- not.
local function serve(body, queue, channel, now, own, others, beside)
  local asleep
  for index, lease in ipairs(redis.call('zrange', queue, '0', '31')) do
    if lease == '~' and beside then
      if is_heard_outside(queue, channel, now) then
        return false
      elseif not blind then
        -- With `blind`, clients that the server does not count may still wait for the free lock.
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
-- Transfers a body that shared leases or permits hold to the waiters before the first that does not fit, and before
-- `own`.
local function admit(body, queue, channel, now, own)
  local mode = redis.call('hget', body, 'mode')
  for _ = 1, mode and 32 or 0 do
    local to = serve(body, queue, channel, now, own, false, mode)
    if not to or to == own then
      return
    end
  end
end
-- Transfers the free body as `serve`, and then to the waiters that may share it.
local function transfer(body, queue, channel, now, own, outside)
  local to = serve(body, queue, channel, now, own, is_turn_due(queue, channel, now, outside))
  if to and to ~= own and to ~= '~' and mode_of(to) then
    -- The body is written, so a denied read raises no error: the caller would take the lock for free.
    pcall(admit, body, queue, channel, now, own)
  end
  return to
end
-- Serves the queue after the body was deleted. `published`: there is no queue, and the release was published. Returns 2
-- if the body was transferred, 3 in a turn of the clients outside the queue, otherwise 1; plus 10 for each waiter that
-- was passed over. `outside` as in `is_turn_due`. It raises no error, because the body is deleted: without a permission
-- to read, it only publishes.
local function free(body, queue, channel, published, outside)
  local _, now = pcall(clock)
  passed_over = 0
  if published then
    if blind then
      return 1
    end
  else
    -- A queue of a foreign type, or one that this user may not use, is no queue.
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

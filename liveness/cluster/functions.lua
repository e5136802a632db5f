#!lua name=@LIBRARY@
-- The sessions of users on many hosts, in one partition. Each partition is a state machine
-- of its own. All keys of a partition have one hash tag, and a call names all of them: while
-- a slot moves, Redis refuses a call as a whole, before it ran.
--
--   KEYS[1]  meta, a hash:
--              v, t       the newest version, and its token
--              c          the newest incarnation
--              n          a version, and how many users there were: see `is_damaged`
--              conf       the configuration, which all hosts must share, and when it began
--              l          when the hosts were last looked at; 0: to be looked at now
--              k          how old versions are: see `trim`
--              p          the clock of the partition, while this one is behind: see `ahead_us`
--              lease      that of the host that began last
--              h<host>    a host, as `load` reads it
--              i<inc>     the host and log of an incarnation: host, line feed, log
--   KEYS[2]  users, a hash: user -> its sessions, the newest first. A session is
--              inc:4 session:6 since_ms:6 #gateway:1 #device:1 gateway device
--   KEYS[3]  stream: an entry for each call that changed something. Its id is the version of
--              its first record; p: the version before it, "version.token"; t: its token;
--              n: how many records; r: the records, msgpack, each
--              [kind, place] or [kind, place, lost place], and a place
--              [user, host, gateway, session, since_ms, reason, device or nothing]
--
-- Times are microseconds. An *incarnation* is a number for one assertion of all sessions by
-- one host: `reap` finds sessions of an older one, and ends them.
local call, sub, byte, fmt, pack, unpack_, mp
local function bind()  -- not there yet while a library is loaded
  call, sub, byte, fmt = redis.call, string.sub, string.byte, string.format
  pack, unpack_, mp = struct.pack, struct.unpack, cmsgpack.pack
end

local LIVE, ASSERTING, FENCED = 1, 2, 3
-- epoch inc state last n beat nonce log; a nonce grows with the start of a process; n: all its sessions; g: those of inc; s: their sum
local HOST = '>dI4BdI4I4I4dd'
local ONLINE, OFFLINE, MOVED = '\146\1', '\146\2', '\147\3'  -- msgpack: the head of a record
local MALFORMED = {}  -- thrown: another program wrote the sessions of a user, or deleted their host
local HEAD = 18  -- bytes of a session in front of its gateway
local FIELDS = 4000  -- the most arguments of one command: Lua's stack is bounded
-- A host knows when a session began within half of a round trip: a second at most. Of two
-- that began within about that time, the one that comes here last is the newer.
local SLACK_MS = 1500
local MODULUS = 4294967296

local function now_us() @NOW@ end

local function load(s)
  local host, at = {}, nil
  host.epoch, host.inc, host.state, host.last, host.n, host.g, host.s, host.beat, host.nonce, at =
    unpack_(HOST, s)
  host.log = sub(s, at)
  return host
end

local function dump(host)
  return pack(HOST, host.epoch, host.inc, host.state, host.last, host.n, host.g,
              host.s % MODULUS, host.beat, host.nonce) .. host.log
end

-- --- sessions ---------------------------------------------------------------------

local function length(s, at)
  local gateway, device = byte(s, at + 16, at + 17)
  if not device then error(MALFORMED) end
  return HEAD + gateway + device
end

local function split(s)
  local list, at = {}, 1
  repeat  -- there is one at least
    local to = at + length(s, at)
    list[#list + 1] = sub(s, at, to - 1)
    at = to
  until at > #s
  return list
end

local function is_single(s) return #s == length(s, 1) end
local function session_of(e) return (unpack_('>I6', e, 5)) end
local function since_of(e) return (unpack_('>I6', e, 11)) end
local function gateway_of(e) return sub(e, HEAD + 1, HEAD + byte(e, 17)) end
local function device_of(e) return sub(e, HEAD + 1 + byte(e, 17)) end

-- The low half of the number of a session, for the sum; `at` is where that half begins.
local function low(s, at)
  local a, b, c, d = byte(s, at, at + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function place(user, host, e, reason)
  local device = device_of(e)
  return mp({user, host, gateway_of(e), session_of(e), since_of(e), reason,
             device ~= '' and device or nil})
end

-- A session and its place, with a beginning between those of two others: `newer` and `older`
-- may be nil. The beginning is known within a round trip; the order is known better.
local function between(newer, older, e, body)
  local since, to = since_of(e), since_of(e)
  if older then to = math.max(to, since_of(older) + 1) end
  if newer then to = math.min(to, since_of(newer)) end
  if to == since then return e, body end
  local fields = cmsgpack.unpack(body)
  fields[5] = to
  return sub(e, 1, 10) .. pack('>I6', to) .. sub(e, 17), mp(fields)
end

-- Finds the host of a session, and the log. Numbers of sessions compare within one log only.
local function owner_of(line)
  local at = string.find(line, '\n', 1, true)
  return sub(line, 1, at - 1), sub(line, at + 1)
end

local function owners(meta, host, name)
  local hosts, logs = {}, {}
  if host then
    local mine = pack('>I4', host.inc)
    hosts[mine], logs[mine] = name, host.log
  end
  return function(e)
    local inc = sub(e, 1, 4)
    if hosts[inc] == nil then
      hosts[inc], logs[inc] = owner_of(call('HGET', meta, 'i' .. (unpack_('>I4', inc))) or '\n')
    end
    return hosts[inc], logs[inc]
  end
end

local function write_users(users, set, del)
  for i = 1, #set, FIELDS do
    call('HSET', users, unpack(set, i, math.min(i + FIELDS - 1, #set)))
  end
  for i = 1, #del, FIELDS do
    call('HDEL', users, unpack(del, i, math.min(i + FIELDS - 1, #del)))
  end
end

local function place_id(e, owner) return owner(e) .. '\n' .. device_of(e) end

-- The sessions of a user that has several: a call may change hundreds of them.
-- `by_id` finds them by incarnation and number, `by_place` by host and device.
local function index(sessions, owner)
  local list, by_id, by_place = split(sessions), {}, {}
  for j = 1, #list do
    by_id[sub(list[j], 1, 10)], by_place[place_id(list[j], owner)] = list[j], list[j]
  end
  return {list = list, by_id = by_id, by_place = by_place}
end

-- Takes a session out of `all`, what `index` returned; returns where it was.
local function take_out(all, e, owner)
  all.by_id[sub(e, 1, 10)], all.by_place[place_id(e, owner)] = nil, nil
  for j = 1, #all.list do
    if all.list[j] == e then table.remove(all.list, j); return j end
  end
end

-- Opens or replaces a session of a user that has others: `e` is the new one. It is put in
-- front of those that began less than `slack` milliseconds after it.
local function insert(out, user, all, e, body, slack, host, name, owner)
  local list, at, is_same, mine = all.list, 1, false, pack('>I4', host.inc)
  local first, was = list[1], all.by_place[place_id(e, owner)]
  if was then at = take_out(all, was, owner) end
  host.s = host.s + low(e, 7)
  if not was then
    host.n, host.g = host.n + 1, host.g + 1
  else
    if sub(was, 1, 4) ~= mine then host.g = host.g + 1 else host.s = host.s - low(was, 7) end
    local _, log = owner(was)
    is_same = sub(was, 5, 10) == sub(e, 5, 10) and log == host.log
  end
  if is_same then
    e = mine .. sub(was, 5)  -- asserted again: the beginning stays
  else
    at = 1
    local last_at = #list + 1
    while at < last_at do  -- a binary search
      local middle = math.floor((at + last_at) / 2)
      if since_of(list[middle]) > since_of(e) + slack then at = middle + 1
      else last_at = middle end
    end
    e, body = between(list[at - 1], list[at], e, body)
  end
  table.insert(list, at, e)
  all.by_id[sub(e, 1, 10)], all.by_place[place_id(e, owner)] = e, e
  local top = list[1]
  if at == 1 then
    if not is_same then
      out:add(MOVED, body, place(user, owner(first), first, 'left'))
    end
  elseif first == was then
    out:add(MOVED, place(user, owner(top), top, 'newest'), place(user, name, was, 'left'))
  end
end

-- Ends session `number` of a user that has others, if it is there.
local function remove(out, user, all, number, body, host, owner)
  local e = all.by_id[pack('>I4', host.inc) .. number]
  if not e then return end
  host.n, host.g, host.s = host.n - 1, host.g - 1, host.s - low(number, 3)
  if take_out(all, e, owner) == 1 then
    out:add(MOVED, place(user, owner(all.list[1]), all.list[1], 'newest'), body)
  end
end

-- Applies n changes of one host: args[A+1..A+n] are users, then n values, then n bodies. A
-- value of 6 bytes ends that session; a longer one is a new or current session.
local A = 10
local function put(keys, host, name, args, n, slack, out)
  local mine, current, order, owner = pack('>I4', host.inc), {}, {}, nil
  for i = A + 1, A + n do  -- each user once: one of many devices is large
    local user = args[i]
    if current[user] == nil then current[user] = false; order[#order + 1] = user end
  end
  local old = call('HMGET', keys[2], unpack(order))
  for i = 1, #order do current[order[i]] = old[i] end
  for i = 1, n do
    local user, value, body = args[A + i], args[A + n + i], args[A + 2 * n + i]
    local have = current[user]
    local becomes = have
    if #value > 6 then
      if not have then
        becomes = value
        out:add(ONLINE, body)
        host.n, host.g, host.s = host.n + 1, host.g + 1, host.s + low(value, 7)
      else
        owner = owner or owners(keys[1], host, name)
        becomes = type(have) == 'table' and have or index(have, owner)
        insert(out, user, becomes, value, body, slack, host, name, owner)
      end
    elseif have then
      if type(have) == 'table' or not is_single(have) then
        owner = owner or owners(keys[1], host, name)
        becomes = type(have) == 'table' and have or index(have, owner)
        remove(out, user, becomes, value, body, host, owner)
      elseif sub(have, 1, 4) == mine and sub(have, 5, 10) == value then
        becomes = false
        out:add(OFFLINE, body)
        host.n, host.g, host.s = host.n - 1, host.g - 1, host.s - low(value, 3)
      end
    end
    if type(becomes) == 'table' and not becomes.list[2] then becomes = becomes.list[1] end
    current[user] = becomes
  end
  local set, del = {}, {}
  for i = 1, #order do
    local user, becomes = order[i], current[order[i]]
    if type(becomes) == 'table' then becomes = table.concat(becomes.list) end
    if becomes then set[#set + 1] = user; set[#set + 1] = becomes
    else del[#del + 1] = user end
  end
  write_users(keys[2], set, del)
end

-- --- records ----------------------------------------------------------------------

local Records = {}
Records.__index = Records

local function new_records() return setmetatable({n = 0}, Records) end

function Records:add(kind, told, lost)
  local k = #self
  self[k + 1], self[k + 2], self[k + 3] = kind, told, lost
  self.n = self.n + 1
end

-- The version of the next record: the *clock of the partition*. It is that of this server,
-- but never goes back. `seen` is the newest version that the caller knows, or this clock as
-- the caller expects it, whichever is later: so versions grow also after a failover that
-- lost some, to a server whose clock is behind.
local function next_version(version, now, seen)
  return math.max(tonumber(version) + 1, now, seen + 1)
end

-- The clock of the partition where hosts have it ahead of this server's, which was set back; at
-- most so much later than a host said it last. `p` has what it said, and this clock then.
local function ahead_us(p, now, most)
  if not p then return 0 end
  local seen, at = string.match(p, '(%d+) (%d+)')
  return seen + math.max(0, math.min(now - at, most))
end

-- Notes a host's estimate of that clock. Returns the clock, for hosts with a lower estimate.
local function note_ahead(meta, p, now, seen)
  local ahead = ahead_us(p, now, 0)
  if seen <= math.max(ahead, now + SLACK_MS * 1000) then return ahead end
  call('HSET', meta, 'p', fmt('%.0f %.0f', seen, now))
  return seen
end

-- Appends the records to the stream; returns the version of the last one, nil if there are
-- none. The token is any number of the caller's. With it, two versions of one number differ,
-- and a reader that has the wrong one notices.
local function append(stream, first, version_before, token_before, token, out)
  if out.n == 0 then return end
  call('XADD', stream, fmt('%.0f-0', first), 'p', version_before .. '.' .. token_before,
       't', token, 'n', out.n, 'r', table.concat(out))
  return first + out.n - 1
end

local function beat(host, now) host.beat = math.max(now, host.beat + 1) end

-- --- damage -----------------------------------------------------------------------

local function counted(version, users) return version .. ' ' .. fmt('%d', users) end

-- Whether another program changed the users. `n` has their number at a version: each change
-- of that number makes a version. At another version it says nothing: an earlier release of
-- these functions, which has no `n`, made that one.
local function is_damaged(n, version, users)
  return n and n ~= counted(version, users) and sub(n, 1, #version + 1) == version .. ' '
end

-- Whether another program deleted the owner of a living host's sessions.
local function lacks_owner(hosts, owner)
  for name, host in pairs(hosts) do
    if host.state ~= FENCED and owner[host.inc] ~= name then return true end
  end
end

-- Ends the life of the partition, as if this server had been emptied: hosts start over, and
-- readers notice. The former users are not known any more.
local function forget(keys) call('UNLINK', keys[1], keys[2], keys[3]) end

-- --- functions for a host ---------------------------------------------------------

-- The host of a call, and the state of the partition, if the call is from the current process
-- and incarnation; else nil and the answer. args: host epoch nonce inc …
local function caller(keys, args)
  local got = call('HMGET', keys[1], 'v', 't', 'l', 'n', 'h' .. args[1], 'p')
  if not (got[1] and got[5]) then return nil, {'unknown'} end
  local host = load(got[5])
  if host.epoch ~= tonumber(args[2]) or host.nonce ~= tonumber(args[3])
     or host.inc ~= tonumber(args[4]) then return nil, {'epoch', host.epoch} end
  got.users = call('HLEN', keys[2])
  -- While a lost host is reaped, only all its sessions are counted.
  if is_damaged(got[4], got[1], got.users) or (host.state ~= FENCED and host.n < host.g) then
    forget(keys)
    return nil, {'damaged'}
  end
  return host, got
end

-- A call that does not continue where the last one ended is refused, but the host lives.
local function refuse_gap(keys, args, host)
  beat(host, now_us())
  call('HSET', keys[1], 'h' .. args[1], dump(host))
  return {'gap', host.last}
end

-- By how many milliseconds the clock of the partition is behind what a host takes it for.
local function ahead_ms(args, first)
  local first_ms = math.floor(first / 1000)
  return (tonumber(args[9]) or first_ms) - first_ms
end

-- Whether changes come late: they were under way for long, or this clock jumped and their
-- sessions began later than they say. Only the host can tell.
local function is_late(args, got, now)
  return tonumber(args[10]) > 0
         and ahead_ms(args, next_version(got[1], now, tonumber(args[7]))) < -SLACK_MS
end

-- They are refused, but the host lives. It compares the clocks, and sends them again.
local function refuse_late(keys, args, host, got, now)
  beat(host, now)
  call('HSET', keys[1], 'h' .. args[1], dump(host))
  return {'late', tonumber(got[1]), now}
end

-- Applies the changes of a call, and writes the new state of its host. Returns the newest
-- version, and the number of users.
local function take(keys, args, host, got, now, is_list)
  local n, name, version, users = tonumber(args[10]), args[1], nil, got.users
  if n > 0 then
    local out, first = new_records(), next_version(got[1], now, tonumber(args[7]))
    -- The order of pieces of lists has no meaning.
    local slack = is_list and -1 or SLACK_MS - math.max(ahead_ms(args, first), 0)
    put(keys, host, name, args, n, slack, out)
    version = append(keys[3], first, got[1], got[2], args[8], out)
  end
  if version then
    local v = fmt('%.0f', version)
    users = call('HLEN', keys[2])
    call('HSET', keys[1], 'v', v, 't', args[8], 'n', counted(v, users), 'h' .. name, dump(host))
    return version, users
  end
  local count = counted(got[1], users)
  if got[4] == count then call('HSET', keys[1], 'h' .. name, dump(host))
  else call('HSET', keys[1], 'n', count, 'h' .. name, dump(host)) end
  return tonumber(got[1]), users
end

-- args: host epoch nonce inc prev last seen token clock n, users…, values…, bodies…
-- clock: the host's estimate of the partition's clock now, in milliseconds, by which its
-- sessions began; empty if it has just compared that clock, after an answer `late`. A call
-- with n = 0 is a beat: the host lives, and its log has reached `last`.
local function apply(keys, args)
  local host, got = caller(keys, args)
  if not host then return got end
  if host.state == ASSERTING then return {'asserting'} end
  if host.state ~= LIVE then return {'fenced'} end
  if host.last ~= tonumber(args[5]) then return refuse_gap(keys, args, host) end
  local now, before = now_us(), host.beat
  if is_late(args, got, now) then return refuse_late(keys, args, host, got, now) end
  host.last = tonumber(args[6])
  beat(host, now)
  local version, users = take(keys, args, host, got, now, false)
  version = math.max(version, note_ahead(keys[1], got[6], now, tonumber(args[7])))
  return {'ok', version, host.g, host.s % MODULUS, now, host.beat, before,
          math.abs(now - (tonumber(got[3]) or 0)), users}
end

-- If a host that follows now has sessions to reap, the next look is made at once, by any host.
local function hurry_look(meta, host)
  if host.n > host.g then call('HSET', meta, 'l', 0) end
end

-- args: host epoch nonce log newest conf lease may_keep take token
-- take: 1, or a beat that has not moved for a lease by the clock of the caller: take the name
-- from the process that has it. keep: go on behind `last`. reset: assert all sessions.
-- replaced: another process has this name and lives.
local function begin(keys, args)
  local meta, name, epoch, nonce = keys[1], args[1], tonumber(args[2]), tonumber(args[3])
  local got = call('HMGET', meta, 'v', 'h' .. name, 'conf', 'c', 'p')
  local now, conf = now_us(), args[6] .. ' '
  if not (got[1] and got[3]) then
    -- Users without it have no host.
    if call('HLEN', meta) + call('HLEN', keys[2]) > 0
       or call('XREVRANGE', keys[3], '+', '-', 'COUNT', 1)[1] then forget(keys) end
    got = {0, false, conf .. fmt('%.0f', now), 0}
    call('HSET', meta, 'v', 0, 't', args[10] .. '-' .. fmt('%.0f', now), 'c', 0, 'l', 0,
         'conf', got[3])
  elseif sub(got[3], 1, #conf) ~= conf then
    return {'config', got[3]}
  end
  local version = math.max(tonumber(got[1]), ahead_us(got[5], now, tonumber(args[7]) / 3))
  local host = got[2] and load(got[2])
  if host then
    if host.state ~= FENCED and host.nonce > nonce  -- it began later
       and args[9] ~= '1' and host.beat ~= tonumber(args[9]) then
      return {'replaced', host.epoch, host.beat}
    end
    if host.epoch >= epoch then return {'epoch', host.epoch} end
    -- The process that takes over counts as the later one, even if its clock is behind.
    if host.nonce ~= nonce then nonce = math.max(nonce, host.nonce + 1) end
    if args[8] == '1' and host.state == LIVE and host.log == args[4]
       and host.last <= tonumber(args[5]) then
      host.epoch, host.nonce = epoch, nonce
      beat(host, now)
      call('HSET', meta, 'lease', args[7], 'h' .. name, dump(host))
      hurry_look(meta, host)
      return {'keep', host.last, host.inc, version, now, nonce}
    end
  else
    host = {n = 0, beat = 0}
  end
  -- Reuse an incarnation without sessions: a host that begins again and again, as while memory
  -- is used up, needs no more.
  if host.g ~= 0 or host.log ~= args[4] then host.inc = tonumber(got[4]) + 1 end
  host.epoch, host.nonce, host.log = epoch, nonce, args[4]
  host.state, host.last, host.g, host.s = ASSERTING, 0, 0, 0
  beat(host, now)
  call('HSET', meta, 'c', math.max(host.inc, tonumber(got[4])), 'lease', args[7],
       'i' .. host.inc, name .. '\n' .. host.log, 'h' .. name, dump(host))
  return {'reset', 0, host.inc, version, now, nonce}
end

-- args: host epoch nonce inc k last seen token clock n, users…, values…, bodies…
-- The k-th piece of all sessions, from 0. last: the seq at which the list is true; -1: more
-- pieces follow.
local function assert_(keys, args)
  local host, got = caller(keys, args)
  if not host then return got end
  if host.state ~= ASSERTING then return {host.state == LIVE and 'live' or 'fenced'} end
  if host.last ~= tonumber(args[5]) then return refuse_gap(keys, args, host) end
  local now, last = now_us(), tonumber(args[6])
  if is_late(args, got, now) then return refuse_late(keys, args, host, got, now) end
  if last >= 0 then host.state, host.last = LIVE, last else host.last = host.last + 1 end
  beat(host, now)
  local version = take(keys, args, host, got, now, true)
  if host.state == LIVE then hurry_look(keys[1], host) end
  return {'ok', version, host.n, now}
end

-- --- functions that end sessions without a host -----------------------------------

-- Whether incarnation `inc` of `host` has no more sessions.
local function is_spent(inc, host)
  return not host or (host.state == LIVE and host.n == host.g and host.inc ~= inc)
end

-- Trims entries older than `keep`. This server's clock may jump, so ages are summed up from
-- check to check, and each adds at most `most`. `marks` has the time of the last check, and
-- pairs of age and version, the newest first. Returns the new marks.
local function trim(stream, marks, now, most, version, keep)
  local passed = marks and math.max(0, math.min(now - unpack_('>d', marks), most)) or 0
  local kept, newest, cut = {}, keep, nil
  for at = 9, marks and #marks or 0, 16 do
    local age, mark = unpack_('>dd', marks, at)
    age = age + passed
    newest = math.min(newest, age)
    kept[#kept + 1] = pack('>dd', age, mark)
    if age >= keep then cut = mark; break end
  end
  if newest >= keep / 8 then table.insert(kept, 1, pack('>dd', 0, version)) end
  if cut then call('XTRIM', stream, 'MINID', '~', fmt('%.0f', cut + 1)) end
  return pack('>d', now) .. table.concat(kept)
end

-- Returns hosts not heard for `quiet`, and the number of sessions to reap; trims the stream.
-- At most once every `every`, for all callers. Each answer ends with the lease.
-- args: host quiet every keep
local function look(keys, args)
  local now, quiet, every = now_us(), tonumber(args[2]), tonumber(args[3])
  local got = call('HMGET', keys[1], 'l', 'v', 'k', 'lease')
  if not got[2] then return {'unknown'} end
  local lease = tonumber(got[4] or 0)
  if math.abs(now - (tonumber(got[1]) or 0)) < every then return {'later', lease} end
  local marks = trim(keys[3], got[3], now, 2 * every, tonumber(got[2]), tonumber(args[4]))
  call('HSET', keys[1], 'l', fmt('%.0f', now), 'k', marks)
  local all, quiets, stale, hosts, owner = call('HGETALL', keys[1]), {}, 0, {}, {}
  for i = 1, #all, 2 do
    if byte(all[i]) == 105 then owner[tonumber(sub(all[i], 2))] = owner_of(all[i + 1])  -- i
    elseif byte(all[i]) == 104 then  -- h
      local name, host = sub(all[i], 2), load(all[i + 1])
      hosts[name] = host
      if host.state == LIVE then stale = stale + host.n - host.g end
      if host.state == FENCED then
        stale = stale + math.max(host.n, 1)  -- at least the host itself
      elseif math.abs(now - host.beat) > quiet and name ~= args[1] then
        quiets[#quiets + 1] = {name, fmt('%.0f', host.epoch), fmt('%.0f', host.beat)}
      end
    end
  end
  if lacks_owner(hosts, owner) then
    forget(keys)
    return {'damaged'}
  end
  for inc, name in pairs(owner) do
    if is_spent(inc, hosts[name]) then stale = stale + 1 end
  end
  return {'ok', stale, quiets, lease}
end

-- Fences a host, if nothing was heard of it since `beat`; and only for a caller that is
-- itself up to date here: a failover that lost beats of others has lost the caller's too.
-- args: me my_beat host epoch beat
local function fence(keys, args)
  local got = call('HMGET', keys[1], 'h' .. args[1], 'h' .. args[3])
  if not got[2] then return {'unknown'} end
  local me, host = got[1] and load(got[1]), load(got[2])
  if not me or me.state ~= LIVE or me.beat ~= tonumber(args[2]) then return {'behind'} end
  if host.state == FENCED then return {'fenced'} end
  if host.epoch ~= tonumber(args[4]) then return {'epoch', host.epoch} end
  if host.beat ~= tonumber(args[5]) then return {'heard'} end
  host.state = FENCED
  call('HSET', keys[1], 'h' .. args[3], dump(host))
  return {'ok'}
end

-- The reason to end a session of an incarnation; false: none.
local function reaper(hosts, owner)
  local known = {}
  return function(e)
    local inc = sub(e, 1, 4)
    local why = known[inc]
    if why == nil then
      local name = owner[(unpack_('>I4', inc))]
      -- Nobody could take it off the count of its host, which would be reaped for ever.
      if not name then error(MALFORMED) end
      local host = hosts[name]
      if not host or host.state == FENCED then why = 'host_lost'
      else why = host.state == LIVE and pack('>I4', host.inc) ~= inc and 'resync' end
      known[inc] = why
    end
    return why
  end
end

-- Ends sessions without a host among about `count` users. args: cursor count seen token
local function reap(keys, args)
  local now, all, hosts, owner = now_us(), call('HGETALL', keys[1]), {}, {}
  if not all[1] then return {'unknown'} end
  local version, token, count, stale, gone = '0', '0', nil, 0, 0
  for i = 1, #all, 2 do
    local field, value = all[i], all[i + 1]
    if field == 'v' then version = value
    elseif field == 't' then token = value
    elseif field == 'n' then count = value
    elseif byte(field) == 104 then hosts[sub(field, 2)] = load(value)  -- h
    elseif byte(field) == 105 then owner[tonumber(sub(field, 2))] = owner_of(value) end
  end
  if is_damaged(count, version, call('HLEN', keys[2])) then
    forget(keys)
    return {'damaged'}
  end
  local why_ended = reaper(hosts, owner)
  local function name_of(e) return owner[(unpack_('>I4', e))] end
  local function count_ended(e)
    local host = hosts[name_of(e)]
    if host then host.n, host.dirty = host.n - 1, true end
    gone = gone + 1
  end
  local got = call('HSCAN', keys[2], args[1], 'COUNT', args[2])
  local set, del, out = {}, {}, new_records()
  for i = 1, #got[2], 2 do
    local user, list, kept, lost = got[2][i], split(got[2][i + 1]), {}, nil
    for j = 1, #list do
      local e = list[j]
      local why = why_ended(e)
      if why then
        if j == 1 then lost = place(user, name_of(e), e, why) end
        count_ended(e)
      else
        kept[#kept + 1] = e
      end
    end
    if #kept == 0 then
      del[#del + 1] = user
      out:add(OFFLINE, lost)
    elseif #kept < #list then
      set[#set + 1] = user
      set[#set + 1] = table.concat(kept)
      if lost then out:add(MOVED, place(user, name_of(kept[1]), kept[1], 'newest'), lost) end
    end
  end
  write_users(keys[2], set, del)
  local first = next_version(version, now, tonumber(args[3]))
  local newest = append(keys[3], first, version, token, args[4], out)
  -- While one host reaps, no other looks for sessions to reap.
  local fields, drop = {'l', fmt('%.0f', now)}, {}
  if newest then
    version = fmt('%.0f', newest)
    fields = {'l', fields[2], 'v', version, 't', args[4], 'n',
              counted(version, call('HLEN', keys[2]))}
  end
  for name, host in pairs(hosts) do
    if host.state == FENCED then
      if host.n <= 0 then host.is_gone = true; drop[#drop + 1] = 'h' .. name
      else stale = stale + host.n end
    elseif host.state == LIVE then stale = stale + host.n - host.g end
    if host.dirty then fields[#fields + 1] = 'h' .. name; fields[#fields + 1] = dump(host) end
  end
  call('HSET', keys[1], unpack(fields))
  for inc, name in pairs(owner) do
    local host = hosts[name]
    if is_spent(inc, host) or host.is_gone then drop[#drop + 1] = 'i' .. inc end
  end
  if #drop > 0 then call('HDEL', keys[1], unpack(drop)) end
  return {'ok', got[1], gone, stale, tonumber(version)}
end

-- --- a function for readers -------------------------------------------------------

-- args: users…; answers rows of user, host, gateway, session, since, device
local function where(keys, args)
  local got, owner, rows = call('HMGET', keys[2], unpack(args)), owners(keys[1]), {}
  for i = 1, #args do
    if got[i] then
      for _, e in ipairs(split(got[i])) do
        local host = owner(e)
        rows[#rows + 1] = {args[i], host, gateway_of(e), session_of(e), since_of(e), device_of(e)}
      end
    end
  end
  return rows
end

local function register(name, run, flags)
  redis.register_function{function_name = '@PREFIX@' .. name, flags = flags, callback =
    function(keys, args)
      if not call then bind() end
      local has_run, answer = pcall(run, keys, args)
      if has_run then return answer end
      if answer ~= MALFORMED then
        if string.find(answer, '^%u+ ') then return {err = answer} end  -- Redis' own, with its code
        error(answer, 0)
      end
      if flags[1] == 'no-writes' then error('a user has no sessions of this schema', 0) end
      forget(keys)
      return {'damaged'}
    end}
end
register('assert', assert_, {})
register('apply', apply, {})
-- These also run when memory is used up: else every host would seem lost, and nothing could
-- free any. A beat is `apply` with n = 0.
register('begin', begin, {'allow-oom'})
register('beat', apply, {'allow-oom'})
register('look', look, {'allow-oom'})
register('fence', fence, {'allow-oom'})
register('reap', reap, {'allow-oom'})
register('where', where, {'no-writes'})
register('now', now_us, {'no-writes'})

"""The shared table of sessions in Redis: its rows, and the scripts that change them. Each script is atomic.

Keys, after a prefix: `s:SESSION`, a hash with the session's row; `on:EPOCH:INSTANCE`, the sessions bound to an instance
by their last use; `epochs`, how often each instance lost its cache: a row of an earlier epoch has no owner; `assigned`,
sessions ever bound to each instance; `life`, the table's name, set while it was empty. All times are Redis's own clock.
The scripts build their keys themselves, so Redis Cluster is not supported.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

ROW_KINDS = (int, int, int, str, int, str, int, str, str)
"""Types of an answer's first values; three counts follow for each instance."""
FIXED = len(ROW_KINDS)


class TableInstance(NamedTuple):
    """One instance in the shared table."""

    active: int
    """Sessions bound there."""
    assigned: int
    """Sessions ever bound there."""
    epoch: int
    """How often it lost its cache."""


class TableRow(NamedTuple):
    """One session in the shared table, and the instances at that moment."""

    granted: bool
    """The commit or the claim succeeded; False = the row has changed since the router read it."""
    turns: int
    version: int
    """Incremented whenever the session is bound to another instance."""
    instance: str
    """Its owner; empty = none."""
    since_migration_s: float | None
    moving_to: str
    """Target of the migration that a router has claimed; empty = none."""
    moving_left_s: float
    """Remaining time of that claim, unless it is renewed."""
    moving_by: str
    """Token of that claim."""
    life: str
    instances: dict[str, TableInstance]


class Hint(NamedTuple):
    """A router's copy of a session's row: the table adopts it if its own version is lower."""

    instance: str = ""
    version: int = 0
    epoch: int = 0
    life: str = ""
    since_migration_us: int = -1
    turns: int = 0


def make_script_argument(prefix: str, ttl_s: float, names: tuple[str, ...], life: str, *values: object) -> bytes:
    """The single argument of a script; `life`: the name for a table that is still empty."""
    return msgspec.msgpack.encode((prefix, round(ttl_s * 1e6), names, life, *values))


def read_row(answer: bytes, names: tuple[str, ...]) -> TableRow:
    """Parse a script's answer for these instances. Raises ValueError if it is malformed."""
    try:
        flat = msgspec.msgpack.decode(answer, type=list[int | str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise ValueError(f"no row of the table: {error}") from error
    if [type(value) for value in flat] != [*ROW_KINDS, *[int] * (3 * len(names))]:
        raise ValueError(f"no row of the table: {flat}")
    row: list[Any] = flat
    granted, turns, version, instance, since_us, moving_to, left_us, moving_by, life = row[:FIXED]
    counts = row[FIXED:]
    instances = {name: TableInstance(*counts[3 * at : 3 * at + 3]) for at, name in enumerate(names)}
    since_s = None if since_us < 0 else since_us / 1e6
    left_s = left_us / 1e6
    return TableRow(bool(granted), turns, version, instance, since_s, moving_to, left_s, moving_by, life, instances)


_HEAD = """
local a = cmsgpack.unpack(ARGV[1])
local P, ttl, names = a[1], a[2], a[3]
local key, session = KEYS[1], string.sub(KEYS[1], #P + 3)
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local life = redis.call('GET', P .. 'life')
if not life then life = a[4]; redis.call('SET', P .. 'life', life) end
local epochs = {}
if #names > 0 then
  for at, count in ipairs(redis.call('HMGET', P .. 'epochs', unpack(names))) do
    epochs[names[at]] = tonumber(count or 0)
  end
end
local function epoch(instance)
  if not epochs[instance] then epochs[instance] = tonumber(redis.call('HGET', P .. 'epochs', instance) or 0) end
  return epochs[instance]
end
local function on(instance) return P .. 'on:' .. epoch(instance) .. ':' .. instance end
local function active(instance) return redis.call('ZCOUNT', on(instance), now - ttl, '+inf') end
local function load(key)
  local r = redis.call('HMGET', key, 'i', 'e', 'v', 'm', 't', 'to', 'by', 'until')
  local row = {i = r[1] or '', v = tonumber(r[3] or 0), m = tonumber(r[4] or -1), t = tonumber(r[5] or 0),
               to = r[6] or '', by = r[7] or '', left = tonumber(r[8] or 0)}
  if row.i ~= '' and tonumber(r[2]) ~= epoch(row.i) then row.i = '' end
  if row.left <= now then row.to, row.by, row.left = '', '', 0 end
  return row
end
local function save(key, row)
  redis.call('HSET', key, 'i', row.i, 'e', row.i == '' and 0 or epoch(row.i), 'v', row.v, 'm', row.m, 't', row.t,
             'to', row.to, 'by', row.by, 'until', row.left)
  redis.call('PEXPIRE', key, math.ceil(ttl / 1000))
end
local function seen(name, instance)
  redis.call('ZADD', on(instance), now, name)
  redis.call('PEXPIRE', on(instance), math.ceil(ttl / 1000))
end
local function bind(name, row, instance)
  if row.i == instance then return end
  if row.i ~= '' then redis.call('ZREM', on(row.i), name) end
  row.i, row.v = instance, row.v + 1
  if instance ~= '' then
    seen(name, instance)
    redis.call('HINCRBY', P .. 'assigned', instance, 1)
  end
end
local function fits(row, version, instance)
  return row.v < version or (row.v == version and row.i == instance)
end
local function answer(granted, row)
  local since = -1
  if row.m >= 0 then since = math.max(0, now - row.m) end
  local out = {granted, row.t, row.v, row.i, since, row.to, math.max(0, row.left - now), row.by, life}
  if #names > 0 then
    for at, assigned in ipairs(redis.call('HMGET', P .. 'assigned', unpack(names))) do
      out[#out + 1] = active(names[at])
      out[#out + 1] = tonumber(assigned or 0)
      out[#out + 1] = epoch(names[at])
    end
  end
  return cmsgpack.pack(out)
end
local NONE = {i = '', v = 0, m = -1, t = 0, to = '', by = '', left = 0}
"""

_ARRIVE = """
local instance, version, hint_epoch, hint_life, since, turns = a[5], a[6], a[7], a[8], a[9], a[10]
local row = load(key)
if version > row.v then
  if instance ~= '' and hint_life == life and hint_epoch ~= epoch(instance) then instance = '' end
  bind(session, row, instance)
  row.v = version
  if since >= 0 then row.m = math.max(row.m, now - since) end
end
row.t = math.max(row.t, turns) + 1
save(key, row)
if row.i ~= '' then seen(session, row.i) end
return answer(1, row)
"""

_COMMIT = """
local instance, version, owner, migrates, token = a[5], a[6], a[7], a[8], a[9]
local row = load(key)
local granted = fits(row, version, owner) and (not migrates or row.by == '' or row.by == token)
if granted then
  row.v = math.max(row.v, version)
  bind(session, row, instance)
  if migrates then row.m = now end
end
if row.by == token then row.to, row.by, row.left = '', '', 0 end
save(key, row)
return answer(granted and 1 or 0, row)
"""

_CLAIM = """
local target, version, owner, token, claim = a[5], a[6], a[7], a[8], a[9]
local row = load(key)
local granted = fits(row, version, owner) and (row.by == '' or row.by == token)
if granted then
  if row.v < version then bind(session, row, owner); row.v = version end
  row.to, row.by, row.left = target, token, now + claim
  save(key, row)
end
return answer(granted and 1 or 0, row)
"""

_UNCLAIM = """
local row = load(key)
if row.by == a[5] then
  row.to, row.by, row.left = '', '', 0
  save(key, row)
end
return answer(1, row)
"""

_LOSE = """
local instance, known, known_life = a[5], a[6], a[7]
if known_life ~= life or known == epoch(instance) then
  redis.call('UNLINK', on(instance))
  redis.call('HINCRBY', P .. 'epochs', instance, 1)
  epochs[instance] = nil
end
return answer(1, NONE)
"""

_REBALANCE = """
local instance, among, limit = a[5], a[6], a[7]
local count, total = {}, 0
for _, name in ipairs(among) do count[name] = active(name); total = total + count[name] end
local share, moved = math.floor(total / #among), 0
while count[instance] < share and moved < limit do
  local from = nil
  for _, name in ipairs(among) do
    if name ~= instance and count[name] > share and (not from or count[name] > count[from]) then from = name end
  end
  if not from then break end
  local name = redis.call('ZRANGEBYSCORE', on(from), now - ttl, '+inf', 'LIMIT', 0, 1)[1]
  local row = load(P .. 's:' .. name)
  count[from] = count[from] - 1
  if row.i == from then
    local last = redis.call('ZSCORE', on(from), name)
    bind(name, row, instance)
    redis.call('ZADD', on(instance), last, name)
    local rest = redis.call('PTTL', P .. 's:' .. name)
    save(P .. 's:' .. name, row)
    if rest > 0 then redis.call('PEXPIRE', P .. 's:' .. name, rest) end
    count[instance] = count[instance] + 1
  else
    redis.call('ZREM', on(from), name)
  end
  moved = moved + 1
end
return answer(moved < limit and 1 or 0, NONE)
"""

_LOOK = """
local before = '(' .. string.format('%.0f', now - ttl)
for _, name in ipairs(names) do redis.call('ZREMRANGEBYSCORE', on(name), '-inf', before) end
return answer(1, NONE)
"""

SCRIPTS = {
    "arrive": _HEAD + _ARRIVE,
    "commit": _HEAD + _COMMIT,
    "claim": _HEAD + _CLAIM,
    "unclaim": _HEAD + _UNCLAIM,
    "lose": _HEAD + _LOSE,
    "rebalance": _HEAD + _REBALANCE,
    "look": _HEAD + _LOOK,
}
"""By operation: `arrive` counts a request of a session; `commit` binds it; `claim` and `unclaim` begin and give up its
migration; `lose` unbinds all sessions of an instance; `rebalance` gives a recovered instance its share; `look` reads
the counts."""

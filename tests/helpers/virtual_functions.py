"""The functions of the cluster, which read the key `now` in place of their server's clock."""

from typing import Final

from liveness.cluster.connection import functions

# Redis scans a small hash in one step, and the order of a large one is drawn by the server.
# So this takes the place of HSCAN: the order is that of a digest, and so is the cursor.
SCAN: Final = """
local function scan(key, cursor, count)
  local all, found, left, after = call('HGETALL', key), {}, {}, '0'
  local function place(field) return tonumber(sub(redis.sha1hex(field), 1, 8), 16) + 1 end
  for i = 1, #all, 2 do
    if place(all[i]) >= tonumber(cursor) then left[#left + 1] = {place(all[i]), i} end
  end
  table.sort(left, function(a, b) return a[1] < b[1] end)
  for j = 1, #left do
    if j > tonumber(count) then after = fmt('%.0f', left[j][1]); break end
    found[2 * j - 1], found[2 * j] = all[left[j][2]], all[left[j][2] + 1]
  end
  return {after, found}
end
local function now_us() return tonumber(call('GET', 'now')) end
"""


def virtual_functions() -> tuple[str, str]:
    """The library, with the clock of the simulation, and scans in small steps."""
    source, prefix = functions("@NOW@")
    source = source.replace("local function now_us() @NOW@ end", SCAN)
    source = source.replace(
        "call('HSCAN', keys[2], args[1], 'COUNT',", "scan(keys[2], args[1],"
    )
    scan = "register('scan', function(keys, args) return scan(keys[2], args[1], args[2]) end"
    return f"{source}\n{scan}, {{'no-writes'}})", prefix

"""Opens the sessions again that were online before a restart."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from liveness.core.records import LOGIN, MOVED, Instant, OnlineFields, Record
from liveness.core.sessions.presence import Presence
from liveness.core.wheel.restart import SessionRestorer
from liveness.core.wheel.table import Entry

# Rows of the online set that a restart takes at a time: few enough to stay in the
# processor's cache.
ROWS_AT_ONCE: Final = 1_000


def restore_sessions(
    presence: Presence,
    rows: Iterable[OnlineFields],
    at: Instant,
    restorer: SessionRestorer,
) -> None:
    """Open the sessions of the online set; each gateway gets time to reconnect.

    Nobody may be online. The rows are in order of sessions. *restorer* is new, with the
    clocks of a planned stop. A session without one, as after a crash, gets a whole
    timeout, and nothing is known of its last event.

    Raises:
        ValueError: A row is damaged.
    """
    wheel, gateways = presence.wheel, presence.gateways
    rest, doubles = iter(rows), list[Entry]()
    while page := [*islice(rest, ROWS_AT_ONCE)]:
        first = 0
        while (first := wheel.restore(restorer, page, first)) < len(page):
            _, uid, _, _, name, _ = page[first]
            if name in restorer.gateways:
                doubles.append(wheel.close(uid))
                continue
            gateway = gateways.add(name)
            restorer.add_gateway(name, gateway.number, in_force=gateway.in_force)
    for name, gateway in gateways.by_name.items():
        restored = restorer.gateways.get(name)
        if restored is not None:
            gateway.users = restored.users
            gateway.unlinked(at.now)
        if gateway.in_force > wheel.timeout_of(gateway.number):
            gateway.in_force_until = at.now if restored is None else restored.until
    for older in doubles:
        _end_double(presence, older, at)


def _end_double(presence: Presence, older: Entry, at: Instant) -> None:
    """Record that a restored session, off the wheel, is over in favour of a newer one.

    Until version 0.2, `7` and `"7"` were two users, and one connection may have both
    sessions: then it is not to be closed, and the record does not name it.
    """
    newer = presence.wheel.find(older.uid)
    assert newer is not None
    is_same = newer.gateway == older.gateway and newer.conn in (older.conn, None)
    gateways, decided = presence.gateways.by_number, presence.decided
    gateways[older.gateway].users -= 1
    user_size, devices = newer.user_devices
    record = Record(
        decided.next_seq, MOVED, newer.uid, gateways[newer.gateway].name, newer.session,
        newer.conn, LOGIN, at.wall_ms, from_gateway=gateways[older.gateway].name,
        from_session=older.session, from_conn=None if is_same else older.conn,
        user_size=user_size, devices=devices,
    )  # fmt: skip
    presence.moved += 1
    decided.record(record)

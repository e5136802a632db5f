"""A restart loses nothing after a planned stop, and only the clocks after a crash.

Clocks, holds and the time that gateways get to come back are tested on virtual time:
`tests/core/sessions/test_presence.py`, `tests/service/links/test_links.py`; what is found
on the disk: `tests/service/storage`. The scripted sidecar runs some of these tests too
(`tests/testing/test_conformance.py`).
"""

from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

# --- a planned stop -----------------------------------------------------------------------


def test_a_gateway_that_reconnects_after_a_restart_goes_on_without_a_record(
    start: Start,
) -> None:
    sidecar = start()
    link = sidecar.gateway("a")
    link.apply("login", ["u", "v"], {"conn": [1, 2]})
    before, _ = link.listed()
    sidecar.stop()
    sidecar.start()
    watcher = sidecar.watcher()
    link = sidecar.gateway("a")
    link.send("keepalive", ["u", "v"], {"conn": [1, 2]})
    link.apply("login", ["u", "v"], {"conn": [1, 2], "age": 5})
    assert link.listed() == (before, 2)
    watcher.sync()
    assert not watcher.records


# --- a crash ------------------------------------------------------------------------------


def crash_and_restart(sidecar: Sidecar) -> None:
    sidecar.kill()
    assert sidecar.socket.exists(), "a crash leaves the file, to be replaced"
    sidecar.start()


def test_after_a_crash_users_sessions_and_conns_are_as_they_were(start: Start) -> None:
    sidecar = start()
    a, b = sidecar.gateway("a"), sidecar.gateway("b")
    a.send("login", ["u", "v", "gone"], {"conn": [1, 2, 3]})
    a.send("login", ["adopting", "bare"])
    a.send("login", "adopting", {"conn": 77})  # takes the conn; no record says so
    a.apply("logout", "gone")
    b.apply("login", "v", {"conn": 9})
    before, seq = sidecar.watcher().listed()
    assert before["adopting"] == ("a", 4, 77)
    assert before["v"] == ("b", 7, 9)
    crash_and_restart(sidecar)
    watcher = sidecar.watcher()
    assert watcher.listed() == (before, seq) == (before, 7)
    assert watcher.next == 8
    assert watcher.log == a.log
    # A late logout of a connection before the crash still ends only its own session.
    a = sidecar.gateway("a")
    a.apply("logout", ["adopting", "v", "u"], {"conn": [76, 2, 1]})
    (offline,) = watcher.take(1)
    assert (offline["seq"], offline["uid"], offline["session"]) == (8, "u", 1)

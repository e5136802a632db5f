"""Every answer to "why is this user offline?", and to "why is it not?"."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest

from liveness.cli.explain import cluster_sentence
from liveness.core.records import LogPosition, Record
from liveness.core.sessions.clearance import AWAY, DISK, MUTE, PAUSED, STORM, UNREAD
from liveness.core.sessions.firing import UserStatus
from liveness.service.http.explanation import Known, sentence

ZONE = "Europe/Berlin"


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", ZONE)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def ms(clock: str, day: str = "2026-11-21") -> int:
    """A moment of the host's clock; in November it is an hour ahead."""
    return round(datetime.fromisoformat(f"{day}T{clock}+01:00").timestamp() * 1000)


NOW = ms("14:03:20")
LOGIN = Record(3, "online", "eve", "gw-2", 3, 42, "login", ms("14:01:55.900"))
END = Record(
    9, "offline", "eve", "gw-2", 3, 42, "silence", ms("14:03:07.004"),
    ms("14:02:37.001"), "keepalive", 30.003,
)  # fmt: skip
LOGOUT = END._replace(reason="logout", last="logout", seen=END.at, silence=0.0)
ONLINE = UserStatus(
    gateway="gw-2",
    session=3,
    conn=42,
    since=ms("14:01:55"),
    last="keepalive",
    seen=ms("14:03:07.500"),
    timeout=30.0,
    fires_in=17.52,
    slot=(0, 5),
    held=None,
    absence=None,
)
DUE = replace(ONLINE, slot=None, fires_in=0.0, seen=ms("14:02:49"))
EMPTY = Known("eve", None, [], None, None)


def ended(record: Record) -> str:
    return sentence(EMPTY._replace(records=[record]), now_ms=NOW)


def online(standing: UserStatus) -> str:
    return sentence(EMPTY._replace(status=standing), now_ms=NOW)


_NOT_HEARD = "not heard since the sidecar restarted"
_UNHEARD = END._replace(seen=None, last=None, restored=True)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (
            END,
            "offline at 14:03:07 after 30.0 s of silence; "
            "last heard: keepalive at 14:02:37 through gw-2",
        ),
        (
            _UNHEARD,
            f"offline at 14:03:07 after 30.0 s of silence; {_NOT_HEARD}, through gw-2",
        ),
        (
            _UNHEARD._replace(reason="gateway_lost"),
            "offline at 14:03:07 with its gateway gw-2, which was lost, after 30.0 s of "
            f"silence; {_NOT_HEARD}",
        ),
        (LOGOUT, "offline at 14:03:07 by a logout through gw-2"),
        (LOGIN, "offline; the reason is not on disk yet: ask again"),
    ],
    ids=["silence", "unheard", "gateway lost", "logout", "not on disk"],
)
def test_an_offline_is_told_with_its_reason(record: Record, told: str) -> None:
    assert ended(record) == told


def test_one_who_is_online_is_told_with_the_time_that_is_left() -> None:
    assert online(ONLINE) == (
        "online through gw-2 (connection 42); last heard: keepalive at 14:03:07, "
        "12.5 s ago; offline in 17.5 s unless it is heard; connected 14:01:55"
    )
    unheard = online(replace(ONLINE, last=None, seen=None))
    assert f"; {_NOT_HEARD}; offline in 17.5 s" in unheard


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (AWAY, "held: gw-2 is not connected, and gets time to come back"),
        (MUTE, "held: gw-2 sends nothing at all"),
        (UNREAD, "held: what gw-2 has sent is read first"),
        (STORM, "held by the storm guard: too many users of gw-2 came due at once"),
        (PAUSED, "no user's timeout runs: the sidecar was away"),
        (DISK, "held: the disk has to write earlier decisions first"),
        (None, "due, and about to go offline"),
    ],
)
def test_one_who_is_due_is_told_why_it_is_held(held: str | None, told: str) -> None:
    assert f"31.0 s ago; {told}" in online(replace(DUE, held=held))


def test_a_user_is_online_with_devices_of_which_the_newest_are_named() -> None:
    first = replace(ONLINE, devices=7)
    unheard = replace(ONLINE, gateway="gw-1", last=None, seen=None)
    shown: dict[str | int, UserStatus] = {f"eve/{n}": first for n in range(5)}
    shown |= {"eve/8": replace(DUE, held=AWAY), "eve/9": unheard}
    of_user = EMPTY._replace(user="eve", devices=shown)
    assert sentence(of_user, now_ms=NOW) == (
        "online with 7 devices; eve/9 through gw-1; eve/8 through gw-2, last heard 31.0 s "
        "ago, held: gw-2 is not connected, and gets time to come back; "
        "eve/4 through gw-2, last heard 12.5 s ago; eve/3 through gw-2, last heard 12.5 s "
        "ago; eve/2 through gw-2, last heard 12.5 s ago; and 2 more"
    )
    none = EMPTY._replace(user="eve")
    assert sentence(none, now_ms=NOW) == "never heard of: the log is empty"
    of_device = of_user._replace(uid="eve/0", status=ONLINE)
    assert sentence(of_device, now_ms=NOW) == online(ONLINE)


def test_one_of_whom_nothing_is_found_may_never_have_been() -> None:
    day = ms("09:00:00", "2026-11-14")
    assert sentence(EMPTY, now_ms=NOW) == "never heard of: the log is empty"
    assert sentence(EMPTY._replace(oldest=LogPosition(4, day)), now_ms=NOW) == (
        "offline; not in the log, which begins at 2026-11-14 09:00:00: never heard of, "
        "or its records were deleted"
    )
    assert sentence(
        EMPTY._replace(back_to=LogPosition(5, ms("13:00:00"))), now_ms=NOW
    ) == (
        "offline, and not in the log back to 13:00:00, where the search ended "
        "(`liveness history` searches all of it)"
    )


def test_a_gateways_name_cannot_steer_the_terminal() -> None:
    name = "gw\x1b[31m"
    for shown in (
        ended(END._replace(gateway=name)),
        online(replace(DUE, gateway=name, held=MUTE, absence=AWAY)),
    ):
        assert shown.isprintable()


def test_all_hosts_of_a_user_are_one_line() -> None:
    now = 1_795_168_830_000
    row = {"uid": "ada", "host": "b\x1b", "gateway": "gw", "session": 4, "since": None}
    phone = row | {"host": "c", "uid": "ada/phone"}
    for hosts, expected in (
        ([], "offline"),
        ([row, phone], r"online on b\x1b through gw; on c through gw (ada/phone)"),
        ([phone] * 7, "; and 2 more"),
    ):
        line = cluster_sentence("ada", {"hosts": hosts}, now_ms=now)
        assert line.startswith("on all hosts: ")
        assert line.endswith(expected)
    since = cluster_sentence("ada", {"hosts": [row | {"since": now}]}, now_ms=now)
    assert re.search(r" through gw since \d\d:\d\d:\d\d$", since)
    line = cluster_sentence("ada", {"error": "Redis\nis away"}, now_ms=now)
    assert line == r"on all hosts: not known now: Redis\nis away"

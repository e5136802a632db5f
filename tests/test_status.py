"""`liveness status` against an `admin.sock` with the metrics that `design.md` names."""

import io
import json
import re
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from liveness.cli import main
from liveness.commands import CommandError
from liveness.commands.status import readiness, status
from liveness.metrics import Collector, Counts, GatewayNow, Now, quantile
from liveness.text import duration
from tests.admin import Admin, answering

READY = b'{"ready": true, "why": []}'


def scraped() -> bytes:
    """What the real collector exposes of a sidecar with two gateways."""
    counts = Counts()
    for lateness_s in (0.004,) * 50 + (0.009,) * 48 + (0.04,) * 2:
        counts.lateness["decided"].observe(lateness_s)
    now = Now(
        events={"login": 1_600, "keepalive": 50_000, "message": 10, "logout": 60},
        ignored={},
        began_unused={},
        users=1_500,
        opened={},
        ended={"silence": 40},
        moved=0,
        early=0,
        slot_users=[],
        hand_lag_s=0.0,
        unattended_s=0.25,
        held={"mute": 3, "unread": 0},
        storms=0,
        links={"gateway": 2, "watcher": 1},
        unread={"memory": 10, "disk": 20},
        unfinished_bytes=0,
        gateways=[
            GatewayNow(
                name="chat-2",
                users=400,
                unacked=0,
                timeout_s=30.0,
                interval_s=20.5,
                mutes=0,
            ),
            GatewayNow(
                name="chat-1",
                users=1_100,
                unacked=0,
                timeout_s=60.0,
                interval_s=20.0,
                mutes=0,
            ),
        ],
        log_seq=1_700,
        log_pending=2,
        write_failures={},
        log_bytes=3 * 2**19,
        log_damaged=0,
        feed_watchers=0,
        streams={"feed": 2, "live": 1, "users": 0},
        timers={},
        timers_loaded=0,
        timer_attempts={},
        is_ready=True,
        version="0.1.0",
        wheel="reference",
    )
    registry = CollectorRegistry()
    registry.register(Collector(counts, lambda: now))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    pages = {"/readyz": (200, READY), "/metrics": (200, scraped())}
    with answering(tmp_path, pages) as server:
        yield server


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    """The gateways' socket: beside it is the one that is asked."""
    return tmp_path / "gateway.sock"


def screen(socket_path: Path, *, as_json: bool = False) -> str:
    out = io.StringIO()
    status(socket_path, as_json=as_json, out=out)
    return out.getvalue()


def test_one_screen_says_how_the_sidecar_is(admin: Admin, socket_path: Path) -> None:
    shown = screen(socket_path)
    rows = {line[:13].strip(): line[14:] for line in shown.splitlines()}
    assert re.fullmatch(r"(\d+ (d|h|min) )*\d+ s", rows.pop("up"))
    assert rows == {
        "liveness": "0.1.0 (wheel: reference)",
        "socket": str(socket_path),
        "ready": "yes",
        "users online": "1,500",
        "by gateway": "chat-1 1,100, chat-2 400",
        "held": "mute 3, unread 0",
        "cadence": "chat-2 speaks every 20.5 s, timeout 30 s",
        "to mend": "a timeout of 2 intervals or more outlasts a lost keepalive",
        "links": "gateway 2, watcher 1",
        "events": "keepalive 50,000, login 1,600, logout 60, message 10",
        "offline": "silence 40",
        "late decided": "p50 5.0 ms, p99 42.5 ms",
        "late durable": "p50 -, p99 -",
        "late sent": "p50 -, p99 -",
        "early": "0 (must stay 0)",
        "log": "seq 1,700, 2 pending, 1.5 MiB",
        "unattended": "0.2 s",
    }
    assert len(rows) < 24
    assert (
        max(len(line) for line in shown.replace(str(socket_path), "").splitlines()) < 80
    )


def test_of_many_gateways_the_largest_are_on_the_screen(
    admin: Admin, socket_path: Path
) -> None:
    body = "".join(f'liveness_gateway_users{{gateway="g{n}"}} {n}\n' for n in range(65))
    admin.pages["/metrics"] = (200, body.encode())
    assert "by gateway    g64 64, g63 63, g62 62, g61 61" in screen(socket_path)
    assert "g57 57, and 57 more\n" in screen(socket_path)


def test_of_timeouts_that_are_too_short_some_are_on_the_screen_and_no_others(
    admin: Admin, socket_path: Path
) -> None:
    def scrape(intervals: dict[str, float]) -> bytes:
        lines = [
            f'liveness_gateway_timeout_seconds{{gateway="{name}"}} 30\n'
            f'liveness_gateway_interval_seconds{{gateway="{name}"}} {interval}\n'
            for name, interval in intervals.items()
        ]
        unknown = 'liveness_gateway_timeout_seconds{gateway="new"} 1\n'
        return "".join([*lines, unknown]).encode()

    admin.pages["/metrics"] = (200, scrape({"fine": 15, "a\x1b": 15.5, "b": 20}))
    shown = screen(socket_path)
    rows = (
        r"a\x1b speaks every 15.5 s, timeout 30 s; b speaks every 20.0 s, timeout 30 s"
    )
    assert f"\ncadence       {rows}\n" in shown
    admin.pages["/metrics"] = (200, scrape({f"g{n}": 20 for n in range(10)}))
    assert "g7 speaks every 20.0 s, timeout 30 s; and 2 more\n" in screen(socket_path)
    admin.pages["/metrics"] = (200, scrape({"fine": 15}))
    assert "cadence" not in screen(socket_path)


def test_timers_are_on_the_screen_if_there_are_any_to_look_at(
    admin: Admin, socket_path: Path
) -> None:
    def scrape(**timers: int) -> bytes:
        lines = [f'liveness_timers{{state="{it}"}} {n}\n' for it, n in timers.items()]
        return "".join(lines).encode()

    admin.pages["/metrics"] = (200, scrape(pending=7_000, fired=0, failed=2, done=9))
    assert "\ntimers        pending 7,000, failed 2, fired 0\n" in screen(socket_path)
    found = json.loads(screen(socket_path, as_json=True))["timers"]
    assert found == {"pending": 7_000, "fired": 0, "failed": 2, "done": 9}
    admin.pages["/metrics"] = (200, scrape(pending=0, fired=0, failed=0, done=9))
    assert "\ntimers" not in screen(socket_path)


def storm(gateway: str, users: int, left_s: float) -> dict[str, object]:
    return {"gateway": gateway, "users": users, "left_s": left_s}


def test_whom_the_guard_holds_is_on_the_screen_with_what_ends_it(
    admin: Admin, socket_path: Path
) -> None:
    admin.pages["/metrics"] = (200, b'liveness_users_held{why="storm"} 13000\n')
    on = [storm("gw-1", 12_000, 23.6), storm("a\x1b", 1_000, 0.2)]
    page = json.dumps({"enabled": True, "storms": on, "more": 3})
    admin.pages["/v1/guard"] = (200, page.encode())
    shown = screen(socket_path)
    assert "\nheld          storm 13,000\n" in shown
    rows = "gw-1 12,000 users, 24 s left; a\\x1b 1,000 users, 0 s left; and 3 more"
    assert f"\nstorm         {rows}\n" in shown
    assert "\nto release    liveness guard release [NAME]\n" in shown
    found = json.loads(screen(socket_path, as_json=True))
    assert (found["storms"], found["storms_more"]) == (on, 3)


def test_nobody_asks_for_storms_while_nobody_is_held(
    admin: Admin, socket_path: Path
) -> None:
    admin.pages["/metrics"] = (200, b'liveness_users_held{why="storm"} 0\n')
    shown = screen(socket_path)
    assert [page for page, _ in admin.asked] == ["/readyz", "/metrics"]
    assert "release" not in shown


def test_as_json_the_same_is_there_to_compute_with(
    admin: Admin, socket_path: Path
) -> None:
    found = json.loads(screen(socket_path, as_json=True))
    assert found.pop("uptime_s") > 0
    assert found == {
        "socket": str(socket_path),
        "ready": True,
        "why": [],
        "version": "0.1.0",
        "wheel": "reference",
        "users_online": 1_500,
        "users_by_gateway": {"chat-1": 1_100, "chat-2": 400},
        "timeout_s_by_gateway": {"chat-1": 60, "chat-2": 30},
        "interval_s_by_gateway": {"chat-1": 20, "chat-2": 20.5},
        "mutes_by_gateway": {"chat-1": 0, "chat-2": 0},
        "users_held": {"mute": 3, "unread": 0},
        "storms": [],
        "storms_more": 0,
        "links": {"gateway": 2, "watcher": 1},
        "events": {"login": 1_600, "keepalive": 50_000, "message": 10, "logout": 60},
        "offlines": {"silence": 40},
        "lateness_s": {
            "decided": {"p50": 0.005, "p99": pytest.approx(0.0425)},
            "durable": {"p50": None, "p99": None},
            "sent": {"p50": None, "p99": None},
        },
        "early": 0,
        "timers": {},
        "log_seq": 1_700,
        "log_pending": 2,
        "log_bytes": 3 * 2**19,
        "unattended_s": 0.25,
    }


def test_what_the_sidecar_does_not_say_is_not_shown_as_none_at_all(
    admin: Admin, socket_path: Path
) -> None:
    admin.pages["/metrics"] = (200, b"")
    assert "early         ? (must stay 0)" in screen(socket_path)
    assert json.loads(screen(socket_path, as_json=True))["early"] is None


def test_a_sidecar_that_is_not_ready_says_why_and_ends_with_1(
    admin: Admin, socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = b'{"ready": false, "why": ["the journal is full", "the hand\\u001b stands"]}'
    admin.pages["/readyz"] = (503, body)
    assert main(["status", "--socket", str(socket_path)]) == 1
    shown = capsys.readouterr().out
    assert r"ready         no: the journal is full; the hand\x1b stands" in shown


def test_quiet_tells_by_the_exit_code_alone(
    admin: Admin, socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quietly = ["status", "--quiet", "--socket", str(socket_path)]
    assert main(quietly) == 0
    admin.pages["/readyz"] = (503, b'{"ready": false, "why": ["starting"]}')
    assert main(quietly) == 1
    assert main([*quietly[:-1], str(socket_path.parent / "none" / "s")]) == 1
    assert capsys.readouterr() == ("", "")


def test_without_a_sidecar_it_is_one_line_that_says_what_to_do(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--socket", str(socket_path)]) == 1
    assert capsys.readouterr().err == (
        f"liveness: no sidecar at {socket_path}: start it with `liveness serve`, "
        "or name another with --socket\n"
    )


@pytest.mark.parametrize(
    ("page", "body"),
    [
        ("/readyz", b"ok"),
        ("/readyz", b"[]"),
        ("/readyz", b'{"ready": true}'),
        ("/metrics", b"\xff"),
        ("/metrics", b"liveness_users_online{ 3\n"),
    ],
)
def test_what_is_no_sidecar_is_told_as_such(
    admin: Admin, socket_path: Path, page: str, body: bytes
) -> None:
    admin.pages[page] = (200, body)
    with pytest.raises(CommandError, match="is no liveness sidecar"):
        screen(socket_path)


def test_what_speaks_no_http_is_told_as_such(tmp_path: Path, socket_path: Path) -> None:
    class Babble(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(b"\x92\xa5error\x80")

    with socketserver.UnixStreamServer(str(tmp_path / "admin.sock"), Babble) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(CommandError, match="is no liveness sidecar"):
            readiness(socket_path)
        thread.join()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.9, "0 s"),
        (59, "59 s"),
        (3_600, "1 h 0 min 0 s"),
        (90_061, "1 d 1 h 1 min 1 s"),
    ],
)
def test_a_duration_begins_with_its_largest_unit(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


# --- estimates ------------------------------------------------------------------------

INF = float("inf")


@pytest.mark.parametrize(
    ("q", "buckets", "expected"),
    [
        (0.5, [(0.01, 100), (0.1, 100), (INF, 100)], 0.005),
        (0.99, [(0.01, 0), (0.1, 100), (INF, 100)], 0.0991),
        (0.5, [(0.01, 50), (0.1, 100), (INF, 100)], 0.01),
        (0.99, [(0.01, 50), (0.1, 50), (INF, 100)], 0.1),  # beyond: the last finite one
        (0.5, [(0.01, 0), (INF, 0)], None),
        (0.5, [], None),
    ],
)
def test_a_quantile_is_spread_evenly_within_its_bucket(
    q: float, buckets: list[tuple[float, float]], expected: float | None
) -> None:
    assert quantile(q, buckets) == pytest.approx(expected)

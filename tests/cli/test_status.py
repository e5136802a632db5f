"""`liveness status`, against an `admin.sock` played by a test."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from liveness.cli import status
from liveness.cli.main import main
from liveness.console.admin_client import CommandError, request_json
from liveness.service.http.summary import quantile
from tests.helpers.admin_server import Admin, answering

READY: Final = (200, b'{"ready": true, "why": []}')
NONE: Final = {"count": 0, "p50_s": None, "p99_s": None}


def gateway(name: str, users: int = 0, **values: object) -> dict[str, object]:
    usual = {"timeout": 30.0, "interval": None, "mutes": 0}
    return {"name": name, "users": users, **usual, **values}


# What `status` reads of the sidecar's summary.
SUMMARY: Final[dict[str, Any]] = {
    "version": "0.1.0",
    "wheel": "reference",
    "uptime_s": 93.5,
    "ready": True,
    "why": [],
    "seq": 1_700,
    "users": 1_500,
    "total": {
        "events": {"login": 1_600, "keepalive": 50_000, "message": 10, "logout": 60},
        "offlines": {"silence": 40},
        "lateness": {
            "decided": {"count": 100, "p50_s": 0.005, "p99_s": 0.0425},
            "durable": NONE,
            "sent": NONE,
        },
    },
    "early": 0,
    "held": {"mute": 3, "unread": 0},
    "storms": [],
    "storms_more": 0,
    "links": {"gateway": 2, "watcher": 1},
    "stalled": [],
    "at": 1_795_168_800_000,
    "link_troubles": [],
    "gateways": [
        gateway("chat-1", 1_100, timeout=60.0, interval=20.0),
        gateway("chat-2", 400, interval=20.5),
    ],
    "gateways_more": 0,
    "unattended_s": 0.25,
    "log_pending": 2,
    "log_bytes": 3 * 2**19,
    "timers": {},
    "cluster": None,
    "outlets": [],
}


def answer(admin: Admin, **values: object) -> None:
    """Have the sidecar answer with its usual summary, but for these values."""
    admin.pages["/v1/wheel"] = (200, json.dumps(SUMMARY | values).encode())


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    with answering(tmp_path, {"/readyz": READY}) as server:
        answer(server)
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The gateways' socket: beside it is the one that is asked."""
    return tmp_path / "gateway.sock"


def screen(path: Path) -> str:
    return status.screen(path, request_json(path, "/v1/wheel"))


def test_one_screen_says_how_the_sidecar_is(admin: Admin, path: Path) -> None:
    shown = screen(path)
    rows = {line[:13].strip(): line[14:] for line in shown.splitlines()}
    assert rows == {
        "liveness": "0.1.0 (wheel: reference)",
        "socket": str(path),
        "ready": "yes",
        "up": "1 min 33 s",
        "users online": "1,500",
        "by gateway": "chat-1 1,100, chat-2 400",
        "held": "mute 3, unread 0",
        "cadence": "chat-2 users send every 20.5 s, timeout 30 s",
        "to mend": "a timeout of 2 intervals or more survives a lost keepalive",
        "links": "gateway 2, watcher 1",
        "events": "keepalive 50,000, login 1,600, logout 60, message 10",
        "offline": "silence 40",
        "decided after": "p50 5.0 ms, p99 42.5 ms from the deadline",
        "durable after": "p50 -, p99 - from the deadline",
        "sent after": "p50 -, p99 - from the deadline",
        "early": "0 (must stay 0)",
        "log": "seq 1,700, 2 pending, 1.5 MiB",
        "unattended": "0.2 s",
    }
    assert len(rows) < 24
    lines = shown.replace(str(path), "").splitlines()
    assert max(map(len, lines)) < 80


def test_as_json_it_is_what_the_sidecar_has(
    admin: Admin, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--json", "--socket", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == SUMMARY


def cluster(**values: object) -> dict[str, Any]:
    """The state of a cluster, as the summary has it; ten seconds old."""
    usual = {"state": "following", "since": SUMMARY["at"] - 10_000, "detail": ""}
    usual |= {"users": 7_000, "lag_records": 0, "lag_s": 0.0}
    return {"cluster": {**usual, **values}}


def outlet(**values: object) -> dict[str, Any]:
    """An outlet, as the summary has it; ten seconds in its state."""
    usual: dict[str, Any] = {"outlet": "webhooks.mail", "state": "following"}
    usual |= {"since": SUMMARY["at"] - 10_000, "detail": "", "lag_s": 0.0}
    usual |= dict.fromkeys(
        ("lag_records", "sent", "dead", "dead_kept", "missed", "damped", "settling"), 0
    )
    return {**usual, **values}


def stalled(role: str, name: str, why: str) -> dict[str, object]:
    """A reader that takes no more records."""
    return {"role": role, "name": name, "why": why, "unacked": 10_000, "for_s": 95.0}


def gateways(intervals: dict[str, float]) -> dict[str, Any]:
    """Gateways with a timeout of 30 s that speak so often, and one that has not yet."""
    listed = [gateway(name, interval=every_s) for name, every_s in intervals.items()]
    return {"gateways": [*listed, gateway("new", timeout=1.0)]}


ROWS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "the largest of many gateways, and the sum of those not listed": (
        {
            "users": 4_000,
            "gateways": [gateway(f"g{n}", n) for n in range(64)],
            "gateways_more": 6,
        },
        "by gateway    other 1,984, g63 63, g62 62, g61 61, g60 60, g59 59, g58 58, "
        "g57 57, and 57 more\n",
    ),
    "timeouts that are too short, and no others": (
        gateways({"fine": 16, "a\x1b": 17.5, "b": 20}),
        r"cadence       a\x1b users send every 17.5 s, timeout 30 s; "
        "b users send every 20.0 s, timeout 30 s\n",
    ),
    "timers to look at": (
        {"timers": {"pending": 7_000, "fired": 0, "failed": 2, "done": 9}},
        "\ntimers        pending 7,000, failed 2, fired 0\n",
    ),
    "since when Redis is away, and why": (
        cluster(state="away", detail="no\nanswer", lag_records=1_200, lag_s=9.87),
        "\ncluster       away for 10 s, lag 1,200 records (9.9 s), "
        "7,000 users on all hosts\nwhy           no\\nanswer\n",
    ),
    "each outlet, and why it does not follow": (
        {
            "outlets": [
                outlet(
                    state="retrying", detail="no\nanswer", lag_records=3, lag_s=9.87
                ),
                outlet(outlet="kafka.a-b", missed=5, damped=6, settling=7),
            ]
        },
        "\nwebhooks.mail retrying for 10 s, lag 3 records (9.9 s), 0 sent; no\\nanswer"
        "\nkafka.a-b     following, lag 0 records (0.0 s), 0 sent, 5 missed, "
        "6 left out, 7 settling\nlog ",
    ),
    "readers that take no more records": (
        {
            "stalled": [
                stalled("gateway", "chat\x1b-1", "unacknowledged"),
                stalled("watcher", "mail", "not-reading"),
            ]
        },
        "stalled       gateway chat\\x1b-1 has not acknowledged 10,000 records for 1 min "
        "35 s, and gets no more; watcher mail does not read its link for 1 min 35 s, and "
        "gets no more\n",
    ),
    "users held by the guard": (
        {
            "storms": [
                {"gateway": "gw-1", "users": 12_000, "left_s": 23.6},
                {"gateway": "a\x1b", "users": 1_000, "left_s": 0.2},
            ],
            "storms_more": 3,
        },
        "\nstorm         gw-1 12,000 users, 24 s left; "
        "a\\x1b 1,000 users, 0 s left; and 3 more\n",
    ),
    "dead letters kept": (
        {
            "outlets": [
                outlet(dead=9, dead_kept=4),
                outlet(outlet="kafka.c", dead=2),
                outlet(outlet="webhooks.b", dead_kept=1),
            ]
        },
        ", 0 sent, 4 dead letters\nkafka.c       following, lag 0 records (0.0 s), 0 sent"
        "\nwebhooks.b    following, lag 0 records (0.0 s), "
        "0 sent, 1 dead letter\ndead letters  see them by `liveness webhooks dead`\n",
    ),
    "long names of outlets in their column": (
        {"outlets": [outlet(outlet="webhooks.chat-history", sent=1_200)]},
        "\nwebhooks.chat-history following, lag 0 records (0.0 s), 1,200 sent\n"
        "log                   seq ",
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_the_screen_shows(admin: Admin, path: Path, case: str) -> None:
    values, text = ROWS[case]
    answer(admin, **values)
    assert text in screen(path)


def test_names_refused_or_replaced_within_the_hour_are_on_the_screen(
    admin: Admin, path: Path
) -> None:
    def trouble(name: str | None, code: str, **values: object) -> dict[str, object]:
        what = "replaced" if code == "replaced" else "refused"
        usual: dict[str, object] = {
            "role": name and "gateway",
            "name": name,
            "what": what,
            "code": code,
        }
        usual |= {"since": 0, "at": SUMMARY["at"] - 61_500, "times": 1}
        return usual | {"pid": 7, "unix_user": 1_000} | values

    rows = [
        trouble("gw-1", "not-allowed", times=1_700),
        trouble("a\x1b", "replaced", pid=0),
        trouble(None, "not-allowed"),
    ]
    answer(admin, link_troubles=rows)
    shown = screen(path)
    assert (
        "\nrefused       gateway gw-1 not-allowed, 1,700 times, last 1 min 1 s ago, process "
        "7 of Unix user 1000; without a hello not-allowed, once, "
    ) in shown
    assert (
        "\nreplaced      gateway a\\x1b once, last 1 min 1 s ago, a process of Unix user "
        "1000\n"
    ) in shown
    assert "in the runbook" in shown


def test_a_sidecar_that_is_not_ready_says_why_and_the_exit_code_is_1(
    admin: Admin, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(admin, ready=False, why=["the disk is full", "the hand\x1b stands"])
    assert main(["status", "--socket", str(path)]) == 1
    shown = capsys.readouterr().out
    assert r"ready         no: the disk is full; the hand\x1b stands" in shown


def test_with_quiet_there_is_the_exit_code_alone(
    admin: Admin, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quietly = ["status", "--quiet", "--socket"]
    assert main([*quietly, str(path)]) == 0
    admin.pages["/readyz"] = (503, b'{"ready": false, "why": ["starting"]}')
    assert main([*quietly, str(path)]) == 1
    assert main([*quietly, str(path.parent / "none" / "s")]) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("body", [b"ok", b"{}"])
def test_another_program_is_no_liveness_sidecar(
    admin: Admin, path: Path, body: bytes
) -> None:
    admin.pages["/v1/wheel"] = (200, body)
    with pytest.raises(CommandError, match="is not a liveness sidecar"):
        screen(path)


def test_a_sidecar_of_another_version_is_named_as_one(admin: Admin, path: Path) -> None:
    answer(admin, total=1)
    with pytest.raises(CommandError, match="has another version: restart it, or use"):
        screen(path)


INF: Final = float("inf")


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

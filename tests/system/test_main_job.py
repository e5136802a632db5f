"""The main job: who falls silent goes offline, as the gateway itself sees it."""

from collections import Counter
from time import perf_counter

import pytest

from tests.helpers.wire import Record
from tests.system.client import SOON_S, Client
from tests.system.sidecar import Sidecar

TIMEOUT_S = 3
USERS = 2_000
SILENT = [f"silent-{n}" for n in range(USERS // 2)]
TALKING = [f"talking-{n}" for n in range(USERS // 2)]
CONN = {uid: 1_000_000 + n for n, uid in enumerate(SILENT + TALKING)}
BATCH = 250
# What each silent user is heard by last; the wheel keeps that per user.
LAST = {uid: ("login", "keepalive", "message")[n % 3] for n, uid in enumerate(SILENT)}
TALK_EVERY_S = TIMEOUT_S / 3


def batches(uids: list[str]) -> list[list[str]]:
    return [uids[n : n + BATCH] for n in range(0, len(uids), BATCH)]


class Chat:
    """A gateway of 2,000 users that notes when it sent what, and when it was told."""

    def __init__(self, link: Client) -> None:
        self.link = link
        self.sent: dict[str, float] = {}  # just before the user's last event
        self.told: dict[int, float] = {}  # by seq, just after the record came

    def report(self, event: str, uids: list[str]) -> None:
        for batch in batches(uids):
            self.sent |= dict.fromkeys(batch, perf_counter())
            self.link.send(event, batch, {"conn": [CONN[uid] for uid in batch]})

    def open(self) -> None:
        self.report("login", SILENT + TALKING)
        self.link.sync()
        for event in ("keepalive", "message"):
            self.report(event, [uid for uid, last in LAST.items() if last == event])

    def talk_until(self, offlines: int) -> None:
        """Keeps reporting active users, until this many offlines have arrived."""
        until, again = perf_counter() + TIMEOUT_S + SOON_S, 0.0
        while len(self.told) < offlines:
            now = perf_counter()
            assert now < until, f"told of {len(self.told)} of {offlines}"
            if now >= again:
                self.report("keepalive", TALKING)
                again = now + TALK_EVERY_S
            self.listen(again - now)

    def listen(self, within_s: float) -> None:
        try:
            frame = self.link.receive(within_s)
        except TimeoutError:
            return
        assert frame is not None
        assert frame[0] == "notices"
        self.told |= dict.fromkeys((r["seq"] for r in frame[1]), perf_counter())


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Chat, list[Record], float]:
    """Half of the users fall silent, then the others log out; what a watcher saw."""
    with Sidecar(tmp_path_factory.mktemp("s"), TIMEOUT_S) as sidecar:
        sidecar.start()
        watcher = sidecar.watcher()
        chat = Chat(sidecar.gateway("chat"))
        chat.open()
        chat.talk_until(len(SILENT))
        still_online, _ = chat.link.listed()
        assert set(still_online) == set(TALKING)
        chat.report("logout", TALKING)
        chat.link.sync()
        feed = watcher.take(2 * USERS)
        watcher.sync()
        assert not watcher.records
        return chat, feed, sidecar.metric("liveness_early_offline_total")


Day = tuple[Chat, list[Record], float]


def test_exactly_the_silent_half_goes_offline_after_the_whole_timeout(day: Day) -> None:
    chat, feed, early = day
    silences = [r for r in feed if r["reason"] == "silence"]
    assert Counter(r["uid"] for r in silences) == Counter(SILENT)
    told = [r["uid"] for r in chat.link.records if r["reason"] == "silence"]
    assert Counter(told) == Counter(SILENT)
    assert early == 0
    for record in silences:
        uid = record["uid"]
        assert (record["gateway"], record["conn"]) == ("chat", CONN[uid])
        assert record["last"] == LAST[uid]
        # From its last event, not an earlier one, and on a clock of seconds: what was
        # measured here spans it. `silence` is rounded to milliseconds.
        waited = chat.told[record["seq"]] - chat.sent[uid]
        assert TIMEOUT_S <= record["silence"] <= waited + 0.0005
        assert abs(record["at"] - record["seen"] - record["silence"] * 1000) <= 1
        assert "restored" not in record


def test_records_come_in_order_and_end_every_session_once(day: Day) -> None:
    chat, feed, _ = day
    assert [r["seq"] for r in feed] == list(range(1, 2 * USERS + 1))
    offlines = [r for r in feed if r["kind"] == "offline"]
    assert chat.link.records == offlines[: len(chat.link.records)]
    begun = {r["session"]: r["uid"] for r in feed if r["kind"] == "online"}
    assert len(begun) == len(offlines) == USERS
    assert {r["session"]: r["uid"] for r in offlines} == begun
    assert {r["uid"] for r in feed if r["reason"] == "logout"} == set(TALKING)

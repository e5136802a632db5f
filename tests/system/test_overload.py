"""More events than can be applied: links that flood wait, and others are judged as usual.

Gateways write as fast as their sockets take it, in batches and user by user, and log in
and out faster than the disk takes it. Meanwhile users of another gateway speak, and those
of a third are silent from their login on.
"""

import select
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any, Final

import pytest

from tests.helpers.wire import Frame, packed
from tests.system.client import Client
from tests.system.conftest import QUICK_FLUSH_S, Start
from tests.system.sidecar import Sidecar

# With room for the speaking thread to be slow.
TIMEOUT_S: Final = 4.0
SPEAK_EVERY_S: Final = 0.2
# The users of the floods are not to fall silent.
LONG: Final[dict[str, Any]] = {"timeout": 3_600}
SPEAKING: Final = [f"speaks-{n}" for n in range(500)]
MANY: Final = [f"many-{n}" for n in range(4_000)]
FEW: Final = [f"few-{n}" for n in range(100)]
CHURN: Final = [f"churn-{n}" for n in range(2_000)]
FLOODS: Final[list[tuple[list[str], list[Frame]]]] = [
    (MANY, [["keepalive", MANY]]),
    (FEW, [["keepalive", uid] for uid in FEW]),
    ([], [["login", CHURN, LONG], ["logout", CHURN]]),
]
FLOOD_BYTES: Final = 1 << 18
# Records that wait for the disk, at which links are no longer read (the default).
MOST_PENDING: Final = 30_000
# Between samples after the first quarter. What waits for the disk is bounded; each second
# brings more than that.
GROWTH_BYTES: Final = 32 << 20
ROUNDING_S: Final = 0.001


class Writer:
    """A gateway that writes these bytes again and again, and reads all that comes."""

    def __init__(self, link: Client, data: bytes, every_s: float) -> None:
        self.link, self.data, self.every_s = link, data, every_s
        self.is_over = threading.Event()
        self.was_full = False  # its socket took no more
        self.received = set[str | None]()  # frames' names; None: the end

    def run(self) -> None:
        while not self.is_over.wait(self.every_s):
            left = memoryview(self.data)
            while left and not self.is_over.is_set():
                sent = self.link.offer(left)
                left = left[sent:]
                if not sent:
                    self.was_full = True
                    select.select([self.link], [self.link], [], 0.1)
                self.read()

    def read(self) -> None:
        while None not in self.received and select.select([self.link], [], [], 0)[0]:
            frame = self.link.receive()
            self.received.add(frame[0] if frame else None)


@contextmanager
def writing(link: Client, data: bytes, every_s: float = 0.0) -> Iterator[Writer]:
    writer = Writer(link, data, every_s)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        yield writer
    finally:
        writer.is_over.set()
        thread.join()


def flooding(sidecar: Sidecar, stack: ExitStack) -> Iterator[Writer]:
    for number, (users, again) in enumerate(FLOODS):
        link = sidecar.gateway(f"flood-{number}", ack=False)
        if users:
            link.apply("login", users, LONG)
        data = packed(*again)
        data *= max(1, FLOOD_BYTES // len(data))
        yield stack.enter_context(writing(link, data))


def check_ends(link: Client, logged_in: dict[str, float]) -> int:
    """No end that has come is early by our own clock; how many there were."""
    ends = link.take(0)
    for record in ends:
        assert (record["kind"], record["reason"]) == ("offline", "silence")
        elapsed_s = perf_counter() - logged_in[record["uid"]]
        assert TIMEOUT_S <= record["silence"] <= elapsed_s + ROUNDING_S
    return len(ends)


@pytest.mark.parametrize(
    "seconds",
    [4, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(300)])],
)
def test_overload_holds_back_links_that_flood_and_judges_other_users_as_ever(
    start: Start, seconds: float
) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    rss, pending = list[int](), list[float]()
    speaks, silent = sidecar.gateway("speaks"), sidecar.gateway("silent", ack=False)
    speaks.apply("login", SPEAKING)
    logged_in, ended = dict[str, float](), 0
    with ExitStack() as stack:
        data = packed(["keepalive", SPEAKING])
        speaking = stack.enter_context(writing(speaks, data, SPEAK_EVERY_S))
        floods = [*flooding(sidecar, stack)]
        until = perf_counter() + seconds
        while perf_counter() < until:
            uids = [f"silent-{len(logged_in) + n}" for n in range(20)]
            logged_in |= dict.fromkeys(uids, perf_counter())
            silent.apply("login", uids)
            ended += check_ends(silent, logged_in)
            rss.append(sidecar.rss_bytes)
            pending.append(sidecar.metric("liveness_log_pending"))
        while ended < len(logged_in):
            silent.until(bool)
            ended += check_ends(silent, logged_in)
        # Users who speak are online, on their first session.
        assert len(sidecar.gateway("asks").where(*SPEAKING)) == len(SPEAKING)
        assert speaking.received == set()
        assert all(it.was_full and it.received <= {"notices"} for it in floods)
    assert ended == len(logged_in)
    assert max(pending) < MOST_PENDING
    later = rss[len(rss) // 4 :]
    assert max(later) - min(later) < GROWTH_BYTES
    assert sidecar.metric("liveness_early_offline_total") == 0

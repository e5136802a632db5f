"""A gateway that a thread keeps talking: now and then, or as fast as its socket takes it.

It knows the wire contract and nothing of this package, reads all the while, and does not
reconnect.
"""

import select
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final, Self

from tests.helpers.wire import Frame, Record, packed
from tests.system.client import SOON_S
from tests.system.sidecar import Sidecar

EVERY_S: Final = 0.05
# What is offered to the socket at once by one who does not pause.
FLOOD_BYTES: Final = 1 << 18
LOOK_EVERY_S: Final = 0.1  # whether it is to end
BATCH: Final = 1_000

Users = Sequence[tuple[str, int]]  # by uid and conn


@contextmanager
def standing_still(sidecar: Sidecar) -> Iterator[float]:
    """Has the sidecar stand still; the moment from which on it does."""
    sidecar.signal(signal.SIGSTOP)
    try:
        yield perf_counter()
    finally:
        sidecar.signal(signal.SIGCONT)


def frames(event: str, users: Users, batch: int = BATCH, **options: Any) -> list[Frame]:
    """Frames that report an event of each of these users."""
    parts = [users[n : n + batch] for n in range(0, len(users), batch)]
    return [
        [
            event,
            [uid for uid, _ in part],
            {**options, "conn": [conn for _, conn in part]},
        ]
        for part in parts
    ]


class Gateway:
    """The gateway, from its hello on.

    Args:
        sidecar: Where it connects.
        name: Its name.
    """

    def __init__(self, sidecar: Sidecar, name: str) -> None:
        self.errors = list[dict[str, Any]]()
        self.is_full = threading.Event()  # its socket takes no more
        self._link = sidecar.gateway(name, ack=False)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._data = b""
        self._every_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(SOON_S)
        self._link.close()

    @property
    def records(self) -> list[Record]:
        """All that it has received."""
        return self._link.records

    def login(self, *users: tuple[str, int], **options: Any) -> None:
        """Logs in these users, and waits until that is applied; before it talks."""
        self._link.send_bytes(packed(*frames("login", users, **options)))
        self._link.sync()

    def repeat(self, again: Sequence[Frame], every_s: float = EVERY_S) -> None:
        """Sends these frames again and again; 0 is as fast as the socket takes them."""
        self._data, self._every_s = packed(*again), every_s
        if not every_s:
            self._data *= max(1, FLOOD_BYTES // len(self._data))
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            next_at = perf_counter() + self._every_s
            left = memoryview(self._data)
            while left and not self._is_over.is_set():
                sent = self._link.offer(left)
                left = left[sent:]
                if not sent:
                    self.is_full.set()
                    select.select([self._link], [self._link], [], LOOK_EVERY_S)
                self._take()
            while (left_s := next_at - perf_counter()) > 0:
                select.select([self._link], [], [], left_s)
                self._take()

    def _take(self) -> None:
        while select.select([self._link], [], [], 0)[0]:
            frame = self._link.receive()
            if frame is None:
                self._is_over.set()
                return
            if frame[0] == "error":
                self.errors.append(frame[1])

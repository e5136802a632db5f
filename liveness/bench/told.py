"""What a system told on a link of its own: read and stamped by a thread."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from liveness.bench.load import LoadError, Notices, now


class OfflineStream:
    """Collects who was told to have fallen silent, and when.

    Args:
        telling: The uids of those who went offline, as they are told.
        stop: Ends that, from another thread.
    """

    def __init__(
        self, telling: Iterable[Sequence[str]], stop: Callable[[], None]
    ) -> None:
        self._telling = telling
        self._stop = stop
        self._notices: list[Notices] = []
        self._count = 0
        self._end = ""
        self._is_leaving = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_leaving = True
        self._stop()
        self._thread.join()

    def wait_for(self, count: int, *, until: float) -> Sequence[Notices]:
        """Wait for *count* users, until a monotonic moment; return what was told."""
        with self._changed:
            while self._count < count and not self._end:
                left_s = until - time.perf_counter()
                if left_s <= 0 or not self._changed.wait(left_s):
                    break
        if self._end:
            raise LoadError(f"nothing more is told: {self._end}")
        return self._notices

    def _listen(self) -> None:
        end = "the end of the stream"
        try:
            for uids in self._telling:
                mono, wall_ms = now()
                records = [
                    {"uid": uid, "reason": "silence", "at": wall_ms} for uid in uids
                ]
                with self._changed:
                    self._notices.append(Notices(mono, records))
                    self._count += len(records)
                    self._changed.notify_all()
        except Exception as error:  # whoever waits is told
            end = repr(error)
        with self._changed:
            self._end = "" if self._is_leaving else end
            self._changed.notify_all()

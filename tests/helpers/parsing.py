"""How much of what a peer sends is parsed before others have a turn."""

from typing import Any

import h11
import pytest
import trio


class Parsing(trio.abc.Instrument):
    """Counts what h11 is given and what it finds, in all and in a pass of the event loop.

    Args:
        monkeypatch: Of the test: it counts until that ends.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = self.most_bytes_in_a_pass = self.most_events_in_a_pass = 0
        self._bytes_now = self._events_now = 0
        receive_data, next_event = (
            h11.Connection.receive_data,
            h11.Connection.next_event,
        )

        def count_bytes(connection: h11.Connection, data: bytes) -> None:
            self.bytes += len(data)
            self._bytes_now += len(data)
            self.most_bytes_in_a_pass = max(self.most_bytes_in_a_pass, self._bytes_now)
            receive_data(connection, data)

        def count_event(connection: h11.Connection) -> Any:
            self._events_now += 1
            self.most_events_in_a_pass = max(
                self.most_events_in_a_pass, self._events_now
            )
            return next_event(connection)

        monkeypatch.setattr(h11.Connection, "receive_data", count_bytes)
        monkeypatch.setattr(h11.Connection, "next_event", count_event)
        trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        self._bytes_now = self._events_now = 0

"""One client of Kafka, from its first record to its end.

It takes batches, and reports them as delivered in the same order. Each call of librdkafka
returns at once: its own threads connect and send. Their reports wait in a queue for
`serve`, which takes a bounded number at a time.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import trio

from liveness.config.outlet_settings import KafkaSettings
from liveness.core.records import GAP, KINDS, Gap, Logged, TimerRecord
from liveness.service.common.notifier import Notifier
from liveness.service.common.threads import in_thread
from liveness.service.common.turnstile import Turnstile
from liveness.service.outlets.common.outlet_log import LogBatch
from liveness.service.outlets.kafka.kafka_client import (
    CONSEQUENCES,
    KafkaError,
    KafkaException,
    Producer,
)
from liveness.service.storage.log_tail import TailEntry
from liveness.text import uid_text

# Records handed over at a time, and acknowledgements served: a millisecond or two.
PIECE: Final = 500
# How often to look for acknowledgements; slower after a while without any, as the brokers
# may be down, and slower still, for log lines only, when no record is in flight.
POLL_S: Final = 0.01
SLOW_POLL_S: Final = 0.1
SLOW_AFTER_S: Final = 1.0
IDLE_POLL_S: Final = 1.0
# librdkafka ends its threads within milliseconds, unless one waits for the system's
# resolver; then they are left to end by themselves.
DESTROY_S: Final = 0.5

_Header: TypeAlias = tuple[str, str | bytes | None]
_KIND_HEADERS: Final[Mapping[str, _Header]] = {
    kind: ("kind", kind.encode()) for kind in (*KINDS, GAP)
}


class KafkaProducer:
    """Sends to one topic.

    After its first failure it takes no more records: give the undelivered ones to another
    producer. *delivered* is called with each batch that all brokers have, in order.
    """

    def __init__(
        self,
        make: Callable[[Callable[[KafkaError], None]], Producer],
        settings: KafkaSettings,
        *,
        log: str,
        turnstile: Turnstile,
        delivered: Callable[[LogBatch], None],
    ) -> None:
        self.failure: KafkaError | None = None
        self.newest_error: KafkaError | None = None  # since the last acknowledgement
        self.in_flight = 0  # records that are not acknowledged
        self.served = 0  # acknowledgements and failures
        self.room = Notifier()
        self.given = Notifier()
        self._topic = settings.topic
        self._turnstile = turnstile
        self._log_header: _Header = ("log", log.encode())
        self._users = settings.users_only
        self._delivered = delivered
        self._sent = deque[_Sent]()
        self._producer: Producer | None = make(self._note_error)

    async def send(self, batch: LogBatch) -> None:
        """Hand over a batch, in pieces; wait while librdkafka has no room for more."""
        sent = _Sent(batch, self)
        self._sent.append(sent)
        self.in_flight += sent.left
        self.given.notify()
        for at in range(0, len(batch.entries), PIECE):
            await self._turnstile.wait()
            await self._put(batch.entries[at : at + PIECE], sent)

    async def _put(self, entries: Sequence[TailEntry], sent: "_Sent") -> None:
        producer, topic, users = self._producer, self._topic, self._users
        assert producer is not None
        for entry in entries:
            record = entry.record
            headers: list[_Header] = [
                ("seq", str(record.seq)), self._log_header, _KIND_HEADERS[record.kind]
            ]  # fmt: skip
            key = key_of(record, users)
            while self.failure is None:
                try:
                    producer.produce(
                        topic, entry.json, key, headers=headers, on_delivery=sent.served
                    )  # fmt: skip
                    break
                except BufferError:
                    self.room.clear()
                    await self.room.wait()
                except KafkaException as error:
                    self.fail(error.args[0])

    def serve(self) -> bool:
        """Take some of librdkafka's reports; return whether there may be more."""
        assert self._producer is not None
        try:
            self._producer.poll(0)
        except _Pause:
            return True
        except KafkaException as error:  # the client has failed for good
            self.fail(error.args[0])
            return True
        finally:
            self.room.notify()
        return False

    async def flush(self) -> None:
        """Wait until all is acknowledged, or the client has failed."""
        while self.in_flight and self.failure is None:
            while self.serve():
                await trio.lowlevel.checkpoint()
            await trio.sleep(POLL_S)

    async def close(self, within_s: float) -> None:
        """Take back unacknowledged records, and end librdkafka's threads.

        Records that are not back within *within_s* stay in memory, with their batch.
        """
        assert self._producer is not None
        self._producer.purge(blocking=False)
        with trio.move_on_after(within_s):
            while len(self._producer):
                while self.serve():
                    await trio.lowlevel.checkpoint()
                await trio.sleep(POLL_S)
        with trio.move_on_after(DESTROY_S):
            await in_thread(self._destroy, abandon_on_cancel=True)

    def completed(self) -> None:
        """Report batches that are delivered, as are all before them."""
        while self._sent and not self._sent[0].left:
            self._delivered(self._sent.popleft().batch)

    def _destroy(self) -> None:
        self._producer = None

    def _note_error(self, error: KafkaError) -> None:
        # "All are down" follows an error of each broker, which has the reason: keep that.
        is_of_all = error.code() == KafkaError._ALL_BROKERS_DOWN
        if self.newest_error is None or not is_of_all:
            self.newest_error = error

    def fail(self, error: KafkaError) -> None:
        """Note that a record was refused, or the client has failed for good."""
        if self.failure is None or self.failure.name() in CONSEQUENCES:
            self.failure = error
        self.room.notify()


class _Sent:
    """A batch in flight."""

    __slots__ = ("batch", "left", "producer")

    def __init__(self, batch: LogBatch, producer: KafkaProducer) -> None:
        self.batch = batch
        self.left = len(batch.entries)
        self.producer = producer

    def served(self, error: KafkaError | None, _message: object) -> None:
        """Note the result for one of its records; librdkafka calls this."""
        producer = self.producer
        if error is None:
            producer.in_flight -= 1
            producer.newest_error = None
            self.left -= 1
            if not self.left:
                producer.completed()
        else:
            producer.fail(error)
        producer.served += 1
        if not producer.served % PIECE:
            raise _Pause


class _Pause(Exception):
    """Raised in a callback to end `poll` early; the other reports stay in the queue."""


def key_of(record: Logged | Gap, users: bool) -> str | None:
    """The key of a record: those with the same key keep their order, in one partition.

    It is the form of a uid on the command line, so no two users have the same key.
    """
    if isinstance(record, Gap):
        return None
    if isinstance(record, TimerRecord):
        return f"timer:{record.gateway}/{record.key}"
    return uid_text(record.user if users else record.uid)

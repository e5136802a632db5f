"""One outlet of [kafka.NAME]: reads the log, sends to a topic, and moves its cursor.

The cursor moves as the brokers acknowledge. When a client of librdkafka has failed, or a
record was refused, a new client begins at the cursor: nothing is left out, and a record
sent again has the same log and seq.
"""

from typing import Final

import structlog
import trio

from liveness.config.outlet_settings import KafkaSettings
from liveness.errors import StartError
from liveness.service.common.threads import in_thread
from liveness.service.outlets.common.outlet import Outlet, OutletState
from liveness.service.outlets.common.outlet_log import (
    READ_RECORDS,
    LogAccess,
    LogBatch,
)
from liveness.service.outlets.kafka.kafka_client import (
    KafkaClients,
    KafkaError,
    advice_about,
)
from liveness.service.outlets.kafka.kafka_producer import (
    IDLE_POLL_S,
    POLL_S,
    SLOW_AFTER_S,
    SLOW_POLL_S,
    KafkaProducer,
)

# The pause before the next client, which doubles while nothing is delivered.
RETRY_S: Final = 1.0
MOST_RETRY_S: Final = 60.0
# After this long without an acknowledgement, the brokers count as unreachable.
LATE_S: Final = 5.0
# A stop of the sidecar waits this long for acknowledgements,
FLUSH_S: Final = 0.2
# then this long for librdkafka to give back the other records.
STOP_S: Final = 0.1
# A failed client gives back all its records: a million take a second.
PURGE_S: Final = 10.0
_NO_ANSWER: Final = (
    "the brokers do not acknowledge; look at their logs, and at min.insync.replicas"
)

_log = structlog.get_logger("kafka")


class KafkaOutlet(Outlet):
    """One topic."""

    def __init__(self, name: str, settings: KafkaSettings, access: LogAccess) -> None:
        super().__init__(f"kafka.{name}", settings, access)
        self._settings = settings
        self._clients = KafkaClients(name, settings, self._log_throttled)

    async def run(self) -> None:
        await self._patiently(self.log.open)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.log.keep_cursor)
                await self._deliver()
        finally:
            self.log.close()

    async def _deliver(self) -> None:
        pause_s = RETRY_S
        while True:
            began = self.log.cursor
            await self._deliver_by_one()
            if self.log.cursor != began:
                pause_s = RETRY_S
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_RETRY_S)
            self.retries += 1
            self.log.restart_at(self.log.cursor, is_resumed=True)

    async def _deliver_by_one(self) -> None:
        """Deliver with one client until it fails, and show why."""
        try:
            producer = await in_thread(self._make_producer)
        except StartError as error:
            self._show("stopped", str(error))
            return
        is_cancelled = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, producer)
                await self._acknowledge(producer)
                nursery.cancel_scope.cancel()
            is_cancelled = False
        finally:
            with trio.CancelScope(shield=True):
                if is_cancelled:
                    with trio.move_on_after(FLUSH_S):
                        await producer.flush()
                await producer.close(STOP_S if is_cancelled else PURGE_S)
                if is_cancelled:
                    await self.log.store_cursor()
        assert producer.failure is not None
        self._show_error(producer.failure)

    def _make_producer(self) -> KafkaProducer:
        return KafkaProducer(
            self._clients.make,
            self._settings,
            log=self.log.log,
            turnstile=self._access.turnstile,
            delivered=self._note_delivered,
        )

    async def _send(self, producer: KafkaProducer) -> None:
        most = self._settings.max_in_flight
        size = min(READ_RECORDS, most // 2)  # while one is sent, the next one is read
        while producer.failure is None:
            await producer.send(await self.log.take(size))
            while producer.in_flight > most - size and producer.failure is None:
                await producer.room.wait()

    async def _acknowledge(self, producer: KafkaProducer) -> None:
        """Take acknowledgements until the client fails."""
        served, since = 0, trio.current_time()
        while True:
            await self._access.turnstile.wait()
            while producer.serve():
                await self._access.turnstile.wait()
            if producer.failure is not None:
                return
            now = trio.current_time()
            if producer.served != served or not producer.in_flight:
                served, since = producer.served, now
            if now - since > LATE_S:
                if producer.newest_error is None:
                    self._show("retrying", _NO_ANSWER)
                else:
                    self._show_error(producer.newest_error)
            if producer.in_flight:
                await trio.sleep(POLL_S if now - since < SLOW_AFTER_S else SLOW_POLL_S)
            else:
                if not self.log.lag_records:
                    self._show_following()
                with trio.move_on_after(IDLE_POLL_S):
                    await producer.given.wait()

    def _note_delivered(self, batch: LogBatch) -> None:
        self.log.delivered(batch)
        self.count_sent(len(batch.entries), batch.oldest_ms)
        self._show_following()

    def _show_following(self) -> None:
        if self.state != "following":
            self.now_is("following")
            _log.info("nothing is in the way of records any longer", outlet=self.name)

    def _show_error(self, error: KafkaError) -> None:
        state, text = advice_about(error, self._settings.topic)
        self._show(state, text, self._clients.without_secrets(error.str()))

    def _show(self, state: OutletState, text: str, cause: str = "") -> None:
        """Show why nothing is delivered, and log it; *cause* in librdkafka's words."""
        self.now_is(state, f"{text} ({cause})" if cause else text)
        self._log_throttled(
            _log.warning, "records are not delivered; they wait in the log",
            key=text, outlet=self.name, why=text, cause=cause,
        )  # fmt: skip

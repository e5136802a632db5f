"""One outlet of [webhooks.NAME]: reads, posts, tries again, and moves its cursor.

One request is in flight at a time, so that records arrive in the order of the log. Its body
is stored first, with the id of all its attempts. When the receiver has refused a record for
good, or all attempts of a request have failed, the records become dead letters, and
delivery continues after them.
"""

import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from random import random
from typing import Final, TypeVar

import structlog
import trio

from liveness.config.outlet_settings import WebhookSettings
from liveness.config.settings import Config
from liveness.core.records import OFFLINE, Record
from liveness.errors import LivenessError, StartError, StateError
from liveness.metrics.outlet_now import OutletNow
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.outlets.common.outlet import OutletState, OutletStatus
from liveness.service.outlets.common.outlet_log import (
    RETRY_S,
    LogAccess,
    LogBatch,
    OutletLog,
)
from liveness.service.outlets.webhooks import batch_store
from liveness.service.outlets.webhooks.answers import (
    DeadLetter,
    PostAnswer,
    PostOutcome,
    SendResult,
    Unfinished,
)
from liveness.service.outlets.webhooks.attempt_wait import AttemptWait
from liveness.service.outlets.webhooks.batch_store import StoredBatch, new_id
from liveness.service.outlets.webhooks.cloud_events import (
    check_event,
    event_of,
    event_of_json,
    joined,
    record_of_json,
)
from liveness.service.outlets.webhooks.retry_ladder import asked_wait_s, next_try

T = TypeVar("T")

# After this many refused records in a row, there is a pause at each further one: a receiver
# that refuses all records costs two requests per record.
REFUSED_AT_ONCE: Final = 20
REFUSED_PAUSE_S: Final = 0.02
# The longest time to close connections at the end.
CLOSE_S: Final = 0.5

_log = structlog.get_logger("outlet")


def make_webhooks(config: Config, access: LogAccess) -> "list[WebhookOutlet]":
    """The outlets that the settings name.

    Raises:
        StartError: A package is missing.
    """
    try:
        import standardwebhooks  # noqa: F401
    except ImportError as error:
        raise StartError(
            f"webhooks need the package {error.name}, which is not installed: "
            "pip install 'liveness-sidecar[sidecar,webhooks]', or remove [webhooks.…] from the settings"
        ) from None
    return [
        WebhookOutlet(name, settings, access)
        for name, settings in config.webhooks.items()
    ]


class WebhookOutlet:
    """One outlet."""

    def __init__(self, name: str, settings: WebhookSettings, access: LogAccess) -> None:
        from liveness.service.outlets.webhooks.sender import WebhookSender

        self.name = f"webhooks.{name}"
        self.settings = settings
        self._access = access
        self._log = OutletLog(self.name, settings, access)
        self._status = OutletStatus(access.clock, access.clock.state_ms())
        self._sender = WebhookSender(
            self.name, settings, access.clock, access.turnstile
        )
        self._wait = AttemptWait(access.clock)
        self._refused = 0  # records in a row
        self._posts = 0  # users of the connections: `run`, and requests by operators
        self._log_throttled = LogThrottle(REPEAT_LOG_S, clock=access.clock.mono)

    async def run(self) -> None:
        """See `Outlet.run`."""
        failure: LivenessError | None = None
        try:
            self._posts += 1
            await self._sender.read_files()
            self._status.dead_kept = await self._store(batch_store.count_letters)
            await self._finish_begun()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._log.keep_cursor)
                try:
                    await self._follow()
                except LivenessError as error:  # a nursery would wrap it
                    failure = error
                nursery.cancel_scope.cancel()
        finally:
            self._log.close()
            with trio.CancelScope(deadline=trio.current_time() + CLOSE_S, shield=True):
                await self._end_posts()
        if failure is not None:
            raise failure

    def failed(self, why: str) -> None:
        """See `Outlet.failed`."""
        self._status.now_is(OutletState.STOPPED, why)

    def now(self) -> OutletNow:
        """See `CursorOutlet.now`."""
        return self._status.shown(self._log)

    # --- for operators ----------------------------------------------------------------

    async def send_test(self) -> SendResult:
        """Post one signed event of type `liveness.test` now, apart from the log.

        If the receiver fails, nothing is raised. If it accepts the event, a request that
        waits for its next attempt is tried at once.
        """
        return await self._post_alone(self._test_event())

    async def dead_letters(self, before: int | None, limit: int) -> list[DeadLetter]:
        """The dead letters of this outlet, newest first.

        Raises:
            StateError: The database is not open.
            sqlite3.Error: It cannot be read now.
        """
        self._check_open()
        below = 2**63 - 1 if before is None else before
        find = partial(batch_store.letters, before=below, limit=limit)
        found = await self._access.store.run(lambda db: find(db, self.name))
        return [letter for _, letter in found]

    async def next_dead(self, after: int) -> int | None:
        """The number of this outlet's oldest dead letter above a number; None: no more.

        Raises:
            StateError: The database is not open.
            sqlite3.Error: It cannot be read now.
        """
        self._check_open()
        find = batch_store.next_letter
        return await self._access.store.run(lambda db: find(db, self.name, after))

    def note_dead(self, kept: int) -> None:
        """Note how many dead letters are kept, after an operator deleted some."""
        self._status.dead_kept = kept

    async def retry(self, number: int) -> SendResult | None:
        """Post a dead letter alone, now; delete it if it is accepted.

        Its request has a new id, as that of the letter belongs to another body. Whether it
        is superseded is decided again. If it is accepted, a waiting request is tried at
        once.

        None: there is no such letter.

        Raises:
            StateError: The database is not open.
            Unfinished: It is accepted, and cannot be deleted now.
            sqlite3.Error: The database cannot be read now.
        """
        found = await self.dead_letters(before=number + 1, limit=1)
        if not found or found[0].number != number:
            return None
        letter = found[0]
        record = record_of_json(letter.record)
        is_superseded = record is not None and self._access.is_superseded(
            record, letter.log, self.settings
        )
        event = event_of_json(
            letter.record,
            log=letter.log,
            users_only=self.settings.users_only,
            is_superseded=is_superseded,
        )
        result = await self._post_alone(event)
        if result.is_accepted:
            delete = batch_store.delete_letter
            self._status.sent += 1
            try:
                self._status.dead_kept = await self._access.store.run(
                    lambda db: delete(db, self.name, number)
                )
            except (OSError, sqlite3.Error) as error:
                raise Unfinished(
                    f"the receiver has accepted the dead letter {number}, and it cannot "
                    f"be deleted ({error}): another retry sends it again; free the disk, "
                    f"then `liveness webhooks drop {number}`"
                ) from error
        return result

    async def _post_alone(self, event: str) -> SendResult:
        self._posts += 1
        try:
            answer = await self._sender.post(new_id(), joined([event]))
        except LivenessError as error:
            return SendResult(False, None, str(error), 0.0)
        finally:
            with trio.CancelScope(deadline=trio.current_time() + CLOSE_S, shield=True):
                await self._end_posts()
        if answer.outcome is PostOutcome.ACCEPTED:
            self._wait.end()
        return answer.result

    def _test_event(self) -> str:
        now_ms = self._access.clock.wall_ms()
        return check_event(self._log.log, self.name, new_id(), now_ms)

    async def _end_posts(self) -> None:
        """Close the connections, unless another task uses them."""
        self._posts -= 1
        if not self._posts:
            await self._sender.close()

    def _check_open(self) -> None:
        if not self._access.store.is_open:
            raise StateError(
                f"{self._access.store.path} is not open; see the state of {self.name} "
                "in `liveness status`"
            )

    # --- the log ----------------------------------------------------------------------

    async def _finish_begun(self) -> None:
        """Send requests begun before a restart, and open the log after them."""
        await self._patiently(self._log.open)
        batch = await self._store(batch_store.top_batch)
        self._status.now_is(OutletState.FOLLOWING)
        if batch is not None:
            self._log.behind_since(batch.oldest_ms)
            if batch.attempts:
                self._is_retrying(batch)
            await self._deliver(batch)
            await self._patiently(self._log.open)

    async def _follow(self) -> None:
        while True:
            taken = await self._log.take(
                self.settings.batch, linger_s=self.settings.linger_s
            )
            await self._access.turnstile.wait()
            batch = self._batch_of(taken)
            await self._store(batch_store.put_batch, batch)
            await self._deliver(batch)
            self._log.delivered(taken)

    def _batch_of(self, taken: LogBatch) -> StoredBatch:
        log = self._log.log
        events = [
            event_of(
                entry.record,
                log=log,
                json=entry.json,
                users_only=self.settings.users_only,
                is_superseded=self._is_superseded(entry.record),
            )
            for entry in taken.entries
        ]
        return StoredBatch(
            0, log, taken.position, new_id(), joined(events), len(events),
            taken.oldest_ms,
        )  # fmt: skip

    def _is_superseded(self, record: object) -> bool:
        return (
            isinstance(record, Record)
            and record.kind == OFFLINE
            and self._access.is_superseded(record, self._log.log, self.settings)
        )

    async def _deliver(self, batch: StoredBatch) -> None:
        """Send a request, and the halves that it may be split into."""
        left: StoredBatch | None = batch
        while left is not None:
            await self._wait.until_due(left)
            answer = await self._sender.post(left.id, left.body)
            self._status.retries += left.attempts > 0
            left = await self._after(left._replace(attempts=left.attempts + 1), answer)

    async def _after(
        self, batch: StoredBatch, answer: PostAnswer
    ) -> StoredBatch | None:
        """Store the result of an attempt; return the request to send next."""
        match answer.outcome:
            case PostOutcome.ACCEPTED:
                return await self._accepted(batch)
            case PostOutcome.REFUSED if batch.records > 1:
                return await self._store(batch_store.halve_batch, batch)
            case PostOutcome.REFUSED if not await self._is_of_receiver(answer):
                self._refused += 1
                if self._refused > REFUSED_AT_ONCE:
                    await trio.sleep(REFUSED_PAUSE_S)
                return await self._give_up(batch, answer)
            case PostOutcome.REFUSED:
                why = f"{answer.short}, and accepts no test event either"
                why += "; correct the url or the secret"
                return await self._again(batch._replace(error=why), answer)
            case PostOutcome.FAILED:
                return await self._again(batch._replace(error=answer.short), answer)

    async def _is_of_receiver(self, answer: PostAnswer) -> bool:
        """Whether the receiver would refuse any request, for instance by a wrong secret.

        Without this, all records would become dead letters, as fast as they can be sent.
        """
        if not answer.is_usually_of_receiver:
            return False
        tried = await self._sender.post(new_id(), joined([self._test_event()]))
        return tried.outcome is not PostOutcome.ACCEPTED

    async def _accepted(self, batch: StoredBatch) -> StoredBatch | None:
        self._refused = 0
        status, clock = self._status, self._access.clock
        left = await self._store(batch_store.finish_batch, batch, clock.state_ms())
        status.sent += batch.records
        status.latency.observe(clock.age_s(batch.oldest_ms))
        status.now_is(OutletState.FOLLOWING)
        return left

    async def _again(
        self, batch: StoredBatch, answer: PostAnswer
    ) -> StoredBatch | None:
        clock, asked_s = self._access.clock, None
        if answer.retry_after is not None:
            asked_s = asked_wait_s(answer.retry_after, clock.wall_ms())
        waits_s = self.settings.waits_s
        found = next_try(waits_s, batch.rung, asked_s=asked_s, drawn=random())
        if found is None:
            return await self._give_up(batch, answer)
        wait_ms = round(found.wait_s * 1000)
        batch = batch._replace(
            rung=found.rung, next_ms=clock.state_ms() + wait_ms, wait_ms=wait_ms
        )
        await self._store(batch_store.put_attempt, batch)
        self._is_retrying(batch)
        self._log_throttled(
            _log.warning, "a webhook failed; it is tried again", key="failed",
            outlet=self.name, id=batch.id, attempts=batch.attempts,
            wait_s=round(found.wait_s, 1), error=batch.error,
        )  # fmt: skip
        return batch

    def _is_retrying(self, batch: StoredBatch) -> None:
        """Show that a request waits for its next attempt, and why."""
        more = max(0, len(self.settings.waits_s) - batch.rung)
        self._status.now_is(
            OutletState.RETRYING,
            f"attempt {batch.attempts}: {batch.error}; the next is in "
            f"{self._wait.left_s(batch):.0f} s, and {more} more may follow; "
            f"`liveness webhooks test {self.name.partition('.')[2]}` tries the receiver, and ends "
            "the wait if it accepts",
        )

    async def _give_up(
        self, batch: StoredBatch, answer: PostAnswer
    ) -> StoredBatch | None:
        """Turn a request's records into dead letters; delivery continues."""
        excess = self._status.dead_kept + batch.records - self.settings.max_dead
        clock = self._access.clock
        bury = partial(
            batch_store.bury_batch,
            excess=excess,
            wall_ms=clock.wall_ms(),
            now_ms=clock.state_ms(),
        )
        left, deleted = await self._store(bury, batch, answer.result)
        status = self._status
        status.dead += batch.records
        status.dead_kept += batch.records - deleted
        status.dead_deleted += deleted
        status.now_is(
            OutletState.FOLLOWING,
            f"records became dead letters ({answer.short}); see `liveness webhooks dead`",
        )
        self._log_throttled(
            _log.error, "records became dead letters", key="dead", outlet=self.name,
            records=batch.records, attempts=batch.attempts, error=answer.short,
            oldest_deleted=deleted,
        )  # fmt: skip
        return left

    # --- the disk ---------------------------------------------------------------------

    async def _store(self, call: Callable[..., T], *arguments: object) -> T:
        """Run *call* on the database with the outlet's name; repeat it while it fails."""
        store = self._access.store
        return await self._patiently(
            lambda: store.run(lambda db: call(db, self.name, *arguments))
        )

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except (OSError, sqlite3.Error) as error:
                message = f"{self._access.store.path} cannot be used"
                self._status.now_is(
                    OutletState.RETRYING, f"{message} ({error}); is the disk full?"
                )
                self._log_throttled(
                    _log.error, f"{message}; it is tried again every second",
                    key="disk", outlet=self.name, error=str(error),
                )  # fmt: skip
            await trio.sleep(RETRY_S)

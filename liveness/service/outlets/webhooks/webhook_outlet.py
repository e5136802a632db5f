"""One outlet of [webhooks.NAME]: reads, posts, tries again, and moves its cursor.

One request is in flight at a time, so that records arrive in the order of the log. Its body
is stored first, with the id of all its attempts. When the receiver has refused a record for
good, or all attempts of a request have failed, the records become dead letters, and
delivery continues after them.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from random import random
from typing import Final, TypeVar

import structlog
import trio

from liveness.config.outlet_settings import WebhookSettings
from liveness.core.records import OFFLINE, Record
from liveness.errors import LivenessError, StateError
from liveness.service.common.notifier import Notifier
from liveness.service.outlets.common.outlet import Outlet
from liveness.service.outlets.common.outlet_log import LogAccess, LogBatch
from liveness.service.outlets.webhooks import batch_store
from liveness.service.outlets.webhooks.batch_store import (
    DeadLetter,
    StoredBatch,
    new_id,
)
from liveness.service.outlets.webhooks.cloud_events import (
    check_event,
    event_of,
    joined,
    record_of_json,
)
from liveness.service.outlets.webhooks.sender import PostAnswer, WebhookSender

T = TypeVar("T")

# Each wait is lengthened by up to this share of it, so that webhooks of many hosts that
# failed together are not sent together.
RETRY_JITTER: Final = 0.1
# The longest wait that a receiver may ask for.
MOST_ASKED_S: Final = 21_600.0
# A pause for each dead letter: a receiver that refuses all records costs two requests a
# record.
REFUSED_PAUSE_S: Final = 0.02
# How often a wait reads the state's clock, which runs on while the host sleeps.
LOOK_S: Final = 60.0

_log = structlog.get_logger("outlet")


class WebhookOutlet(Outlet):
    """One webhook."""

    def __init__(self, name: str, settings: WebhookSettings, access: LogAccess) -> None:
        super().__init__(f"webhooks.{name}", settings, access)
        self.settings = settings
        self._sender = WebhookSender(
            self.name, settings, access.clock, access.turnstile
        )
        self._tried_now = Notifier()  # ends the wait for the next attempt

    async def run(self) -> None:
        try:
            await self._sender.read_files()
            self.dead_kept = await self._store(batch_store.count_letters)
            await self._finish_begun()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.log.keep_cursor)
                await self._follow()
        finally:
            self.log.close()
            self._sender.close()

    # --- for operators ----------------------------------------------------------------

    async def send_test(self) -> PostAnswer:
        """Post one signed event of type `liveness.test` now, apart from the log.

        If the receiver fails, nothing is raised. If it accepts the event, a request that
        waits for its next attempt is tried at once.
        """
        now_ms = self._access.clock.wall_ms()
        return await self._post_alone(
            check_event(self.log.log, self.name, new_id(), now_ms)
        )

    async def retry_next(self, after: int) -> tuple[int, PostAnswer] | None:
        """Post the oldest dead letter above a number; delete it if it is accepted.

        Its request has a new id, as that of the letter belongs to another body. Whether it
        is superseded is decided again. If it is accepted, a waiting request is tried at
        once.

        Returns:
            Its number, and the answer; None: there is no such letter.
        Raises:
            StateError: It is accepted, and cannot be deleted now.
            sqlite3.Error: The database cannot be read now.
        """
        store = self._access.store
        letter: DeadLetter | None = await store.run(
            lambda db: batch_store.next_letter(db, self.name, after)
        )
        if letter is None:
            return None
        answer = await self._post_alone(self._event_of_letter(letter))
        if answer.is_accepted:
            self.sent += 1
            try:
                await self.drop(letter.number)
            except (OSError, sqlite3.Error) as error:
                raise StateError(
                    f"the receiver has accepted the dead letter {letter.number}, and it "
                    f"cannot be deleted ({error}): another retry sends it again; free "
                    "the disk first"
                ) from error
        return letter.number, answer

    async def drop(self, number: int | None = None) -> int:
        """Delete one dead letter for good, or all; return how many that were.

        Raises:
            sqlite3.Error: The database cannot be written now.
        """

        def delete(db: sqlite3.Connection) -> tuple[int, int]:
            deleted = batch_store.delete_letters(db, self.name, number)
            return deleted, batch_store.count_letters(db, self.name)

        deleted, self.dead_kept = await self._access.store.run(delete)
        return deleted

    def _event_of_letter(self, letter: DeadLetter) -> str:
        record, users_only = record_of_json(letter.record), self.settings.users_only
        is_superseded = isinstance(record, Record) and self._access.is_superseded(
            record, self.settings
        )
        return event_of(
            record, log=letter.log, json=letter.record, users_only=users_only,
            is_superseded=is_superseded,
        )  # fmt: skip

    async def _post_alone(self, event: str) -> PostAnswer:
        try:
            answer = await self._sender.post(new_id(), joined([event]))
        except LivenessError as error:
            return PostAnswer(None, str(error))
        finally:
            self._sender.close()
        if answer.is_accepted:
            self._tried_now.notify()
        return answer

    # --- the log ----------------------------------------------------------------------

    async def _finish_begun(self) -> None:
        """Send requests begun before a restart, and open the log after them."""
        await self._patiently(self.log.open)
        batch = await self._store(batch_store.top_batch)
        self.now_is("following")
        if batch is not None:
            self.log.behind_since(batch.oldest_ms)
            if batch.attempts:
                self._is_retrying(batch)
            await self._deliver(batch)
            await self._patiently(self.log.open)

    async def _follow(self) -> None:
        settings = self.settings
        while True:
            taken = await self.log.take(settings.batch, linger_s=settings.linger_s)
            await self._access.turnstile.wait()
            batch = self._batch_of(taken)
            await self._store(batch_store.put_batch, batch)
            await self._deliver(batch)
            self.log.delivered(taken)

    def _batch_of(self, taken: LogBatch) -> StoredBatch:
        log = self.log.log
        events = []
        for entry in taken.entries:
            record = entry.record
            is_superseded = (
                isinstance(record, Record)
                and record.kind == OFFLINE
                and self._access.is_superseded(record, self.settings)
            )
            events.append(
                event_of(
                    record,
                    log=log,
                    json=entry.json,
                    users_only=self.settings.users_only,
                    is_superseded=is_superseded,
                )
            )
        return StoredBatch(
            0, log, taken.position, new_id(), joined(events), len(events),
            taken.oldest_ms,
        )  # fmt: skip

    async def _deliver(self, batch: StoredBatch) -> None:
        """Send a request, and the halves that it may be split into."""
        left: StoredBatch | None = batch
        while left is not None:
            await self._until_due(left)
            answer = await self._sender.post(left.id, left.body)
            self.retries += left.attempts > 0
            left = await self._after(left._replace(attempts=left.attempts + 1), answer)

    async def _after(
        self, batch: StoredBatch, answer: PostAnswer
    ) -> StoredBatch | None:
        """Store the result of an attempt; return the request to send next."""
        if answer.is_accepted:
            now_ms = self._access.clock.state_ms()
            left = await self._store(batch_store.finish_batch, batch, now_ms)
            self.count_sent(batch.records, batch.oldest_ms)
            self.now_is("following")
            return left
        if answer.is_refused:
            if batch.records > 1:
                return await self._store(batch_store.halve_batch, batch)
            await trio.sleep(REFUSED_PAUSE_S)
        elif batch.attempts <= len(self.settings.waits_s):
            return await self._again(batch, answer)
        return await self._give_up(batch, answer)

    async def _again(self, batch: StoredBatch, answer: PostAnswer) -> StoredBatch:
        clock = self._access.clock
        wait_s = self.settings.waits_s[batch.attempts - 1]
        wait_s = max(wait_s, min(answer.retry_after, MOST_ASKED_S))
        wait_ms = round(wait_s * (1 + RETRY_JITTER * random()) * 1000)
        batch = batch._replace(
            next_ms=clock.state_ms() + wait_ms, wait_ms=wait_ms, error=answer.short
        )
        await self._store(batch_store.put_batch, batch)
        self._is_retrying(batch)
        self._log_throttled(
            _log.warning, "a webhook failed; it is tried again", key="failed",
            outlet=self.name, id=batch.id, attempts=batch.attempts,
            wait_s=wait_ms / 1000, error=batch.error,
        )  # fmt: skip
        return batch

    def _is_retrying(self, batch: StoredBatch) -> None:
        """Show that a request waits for its next attempt, and why."""
        more = max(0, len(self.settings.waits_s) - batch.attempts)
        self.now_is(
            "retrying",
            f"attempt {batch.attempts}: {batch.error}; the next is in "
            f"{self._left_s(batch):.0f} s, and {more} more may follow; `liveness "
            f"webhooks test {self.name.partition('.')[2]}` tries the receiver, and ends "
            "the wait if it accepts",
        )

    async def _give_up(
        self, batch: StoredBatch, answer: PostAnswer
    ) -> StoredBatch | None:
        """Turn a request's records into dead letters; delivery continues."""
        clock = self._access.clock
        bury = partial(
            batch_store.bury_batch,
            most=self.settings.max_dead,
            wall_ms=clock.wall_ms(),
            now_ms=clock.state_ms(),
        )
        left, self.dead_kept, deleted = await self._store(
            bury, batch, answer.status, answer.text
        )
        self.dead += batch.records
        self.dead_deleted += deleted
        self.now_is(
            "following",
            f"records became dead letters ({answer.short}); see `liveness webhooks dead`",
        )
        self._log_throttled(
            _log.error, "records became dead letters", key="dead", outlet=self.name,
            records=batch.records, attempts=batch.attempts, error=answer.short,
            oldest_deleted=deleted,
        )  # fmt: skip
        return left

    # --- waits, and the disk ----------------------------------------------------------

    def _left_s(self, batch: StoredBatch) -> float:
        """Seconds until the next attempt is due, by the state's clock.

        No wait takes longer than planned: earlier versions may have stored a time of a
        wrong wall clock.
        """
        left_ms = batch.next_ms - self._access.clock.state_ms()
        return left_ms / 1000 if 0 < left_ms <= batch.wait_ms else 0.0

    async def _until_due(self, batch: StoredBatch) -> None:
        """Wait until an attempt is due, or until a request by hand is accepted."""
        self._tried_now.clear()
        while (left_s := self._left_s(batch)) and not self._tried_now.is_notified:
            with trio.move_on_after(min(left_s, LOOK_S)):
                await self._tried_now.wait()
                return

    async def _store(self, call: Callable[..., T], *arguments: object) -> T:
        """Run *call* on the database with the outlet's name; repeat it while it fails."""
        store = self._access.store
        return await self._patiently(
            lambda: store.run(lambda db: call(db, self.name, *arguments))
        )

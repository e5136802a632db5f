"""The dead letters of all webhooks, including those no longer in the settings."""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from liveness.errors import StateError
from liveness.service.outlets.common.outlet_store import OutletStore
from liveness.service.outlets.webhooks import batch_store
from liveness.service.outlets.webhooks.answers import DeadLetter, Unfinished

# How many one transaction deletes, for which outlets wait.
DELETED_AT_ONCE: Final = 10_000

_KIND: Final = "webhooks."

_log = structlog.get_logger("outlet")


class DeadLetters:
    """Shows and deletes dead letters, by the name of their webhook.

    Every method raises `StateError` if the database is not open, and `sqlite3.Error` if it
    cannot be read or written now.
    """

    def __init__(self, store: OutletStore) -> None:
        self._store = store

    async def page(
        self, name: str | None, before: int, limit: int
    ) -> list[tuple[str, DeadLetter]]:
        """Dead letters below a number, the newest first; of all webhooks if *name* is None."""
        self._check_open()
        outlet = None if name is None else _KIND + name
        found = await self._store.run(
            lambda db: batch_store.letters(db, outlet, before=before, limit=limit)
        )
        return [(owner.removeprefix(_KIND), letter) for owner, letter in found]

    async def owner(self, number: int) -> str | None:
        """The webhook that has a dead letter; None: there is no such letter."""
        self._check_open()
        outlet = await self._store.run(
            lambda db: batch_store.outlet_of_letter(db, number)
        )
        return None if outlet is None else outlet.removeprefix(_KIND)

    async def drop(self, name: str, number: int) -> int:
        """Delete a dead letter of a webhook for good; return how many are left."""
        self._check_open()
        outlet = _KIND + name
        left = await self._store.run(
            lambda db: batch_store.delete_letter(db, outlet, number)
        )
        _log.info("a dead letter was dropped", outlet=outlet, id=number)
        return left

    async def drop_all(
        self, name: str, note_left: Callable[[int], None]
    ) -> tuple[int, int]:
        """Delete for good the dead letters that a webhook has now.

        Each time that some were deleted, *note_left* is called with how many are left.

        Returns:
            How many were deleted, and how many the webhook has now.
        Raises:
            Unfinished: Only some could be deleted.
        """
        self._check_open()
        outlet, deleted, left, more = _KIND + name, 0, 0, True
        until = await self._store.run(lambda db: batch_store.newest_letter(db, outlet))
        delete = partial(
            batch_store.delete_letters, outlet=outlet, until=until, most=DELETED_AT_ONCE
        )
        try:
            while more:
                some, left = await self._store.run(delete)
                note_left(left)
                deleted += some
                more = some == DELETED_AT_ONCE
        except (OSError, sqlite3.Error) as error:
            raise Unfinished(
                f"{error}; {deleted:,} dead letters were deleted, ask again"
            ) from error
        finally:
            _log.info("dead letters were dropped", outlet=outlet, records=deleted)
        return deleted, left

    def _check_open(self) -> None:
        if not self._store.is_open:
            raise StateError(
                f"{self._store.path} is not open; see the outlets in `liveness status`"
            )

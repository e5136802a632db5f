"""Webhooks that a test runs, in virtual time."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from liveness.config.outlet_settings import WebhookSettings
from liveness.service.outlets.supervisor import Outlets
from liveness.service.outlets.webhooks import batch_store
from liveness.service.outlets.webhooks.batch_store import DeadLetter
from liveness.service.outlets.webhooks.webhook_outlet import WebhookOutlet
from tests.service.outlets.outlet_rig import OutletRig
from tests.service.outlets.webhooks.receiver import SECRET_FILE, answering

BUSY: Final = answering(503, b"later")
# Virtual seconds, longer than anything here takes, but for the whole ladder.
LONG_S: Final = 1_000.0


@asynccontextmanager
async def outlet_to(
    url: str, rig: OutletRig, **settings: Any
) -> AsyncIterator[WebhookOutlet]:
    """An outlet that runs; leaving it is a restart."""
    chosen = WebhookSettings(
        url=url, secret_file=SECRET_FILE, begin="oldest", **settings
    )
    outlet = WebhookOutlet("mail", chosen, rig.access)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Outlets([outlet], rig.store, retention_s=3_600).run)
        yield outlet
        nursery.cancel_scope.cancel()


async def letters(
    rig: OutletRig, before: int = 2**63 - 1, limit: int = 10
) -> list[DeadLetter]:
    """The dead letters, newest first."""
    found = await rig.store.run(
        lambda db: batch_store.letters(db, None, before=before, limit=limit)
    )
    return [letter for _, letter in found]


async def until(is_so: Callable[[], object], *, times: float = 1) -> None:
    """Wait until it is so, for at most *times* as long as usual."""
    with trio.fail_after(times * LONG_S):
        while not is_so():  # noqa: ASYNC110 - virtual: this is how time passes
            await trio.sleep(times * 0.5)

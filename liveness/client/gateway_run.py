"""Runs a gateway's link and tasks, and ends them in order."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio

from liveness.client.link_state import LinkState
from liveness.client.reconnecting_link import ReconnectingLink
from liveness.client.task_runner import TaskRunner
from liveness.errors import ReportError

# When `connect` is left: time for running tasks to end, and then as long again for the
# last reports, as the sidecar may not be reading just then.
LAST_S: Final = 1.0


@asynccontextmanager
async def running(link: ReconnectingLink, tasks: TaskRunner) -> AsyncIterator[None]:
    """Run them until the context is left, then write the last reports."""
    only: BaseException | None = None
    try:
        async with anyio.create_task_group() as group:
            tasks.workers = group
            group.start_soon(link.run, tasks.start_workers)
            try:
                yield
            finally:
                tasks.is_stopping = True
                with anyio.move_on_after(LAST_S, shield=True):
                    await tasks.wait_idle()
                group.cancel_scope.cancel()  # the link is shielded from it
                with anyio.move_on_after(LAST_S, shield=True):
                    await tasks.wait_idle()  # cancelled tasks answer their timers
                    await _flush_rest(link)
                link.close()
    except BaseExceptionGroup as errors:
        # The task group is internal: raise a single error as it is.
        if len(errors.exceptions) > 1:
            raise
        only = errors.exceptions[0]
    if only is not None:
        raise only


async def _flush_rest(link: ReconnectingLink) -> None:
    client = link.client
    is_pending = link.is_urgent or client.reports.pending
    is_shut_out = link.state in (LinkState.REFUSED, LinkState.REPLACED)
    if link.error is None and not is_shut_out and (is_pending or client.is_linked):
        # The link was refused just now, or has no timers: both were logged.
        with suppress(anyio.ClosedResourceError, ReportError):
            await link.flush()

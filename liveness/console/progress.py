"""How far the bench is, for whoever waits: a bar on a terminal, else plain lines.

Nothing here is called from what is measured. A scenario says what it is about to do and
hands over a way to ask how far that is; the bar asks when it is drawn, twice a second,
and half a millisecond each time is what it costs.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO, TypeAlias

from rich.console import Console
from rich.progress import (
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress_bar import ProgressBar

DRAWN_PER_S: Final = 2
BAR_WIDTH: Final = 30

# How much is done, from 0 to 1; None: nobody can tell.
Share: TypeAlias = Callable[[], float] | None
# Called with what is about to be done.
Stage: TypeAlias = Callable[[str, Share], None]


def passing(seconds: float) -> Share:
    """The share of a time that begins now."""
    began = time.perf_counter()
    return lambda: (time.perf_counter() - began) / seconds


@contextmanager
def shown(out: TextIO) -> Iterator[Stage]:
    """Shows on *out* what goes on, until the next thing does or the block ends."""
    if not out.isatty():
        yield lambda what, _share: print(what, file=out, flush=True)
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        _Bar(),
        TimeElapsedColumn(),
        console=Console(file=out),
        refresh_per_second=DRAWN_PER_S,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as progress:

        def begin(what: str, share: Share) -> None:
            for task in progress.task_ids:
                progress.remove_task(task)
            progress.add_task(what, share=share)

        yield begin


class _Bar(ProgressColumn):
    def render(self, task: Task) -> ProgressBar:
        share: Share = task.fields["share"]
        return ProgressBar(
            total=1.0 if share else None,
            completed=share() if share else 0.0,
            width=BAR_WIDTH,
            pulse=share is None,
            animation_time=task.get_time(),
        )

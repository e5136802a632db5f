"""The progress of a long command: a bar on a terminal, plain lines elsewhere.

The measured code of the bench never calls this module. A scenario names the step that it
begins and passes a function that returns the share done; the bar calls that function when
it is drawn, twice a second, which costs half a millisecond each time.
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

# Returns the share done, from 0 to 1; None: unknown, and the bar pulses.
Share: TypeAlias = Callable[[], float] | None
# Begins a step, which replaces the one before.
Stage: TypeAlias = Callable[[str, Share], None]


def time_share(seconds: float) -> Share:
    """The share of a period that begins now."""
    began = time.perf_counter()
    return lambda: (time.perf_counter() - began) / seconds


@contextmanager
def progress_bar(out: TextIO, *, has_lines: bool = True) -> Iterator[Stage]:
    """Shows the current step on *out*, until the block ends.

    Args:
        out: Gets a bar if it is a terminal.
        has_lines: Whether it gets a line for each step otherwise, or nothing.
    """
    if not out.isatty():
        yield (
            lambda what, _share: (
                print(what, file=out, flush=True) if has_lines else None
            )
        )
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

"""`liveness bench`: measures the sidecar on this machine, from a gateway's side.

The bench starts the real sidecar as a separate process and drives it over its Unix socket.
It does not use the sidecar's own metrics. Figures come from

- the clocks of this process: lateness is measured from before the last activity is
  written until the record is received. So it is never underestimated, and a record that
  looks early is early by any clock.
- the record: its stamp `at` is the moment of the decision, by the wall clock that is also
  read here. The time of its arrival is reported separately.
- the process table: CPU time and memory, also of the bench itself.

This file has the options. `suite.py` lists the scenarios, and runs them.
"""

# Imports: client, cluster, config, console, core, errors, lab.common.
# Never: starlette, structlog.

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Names the step that begins.
Stage = Callable[[str], None]
# Numbers of users for the comparison; up to four times those of the run are used.
SIZES: Final = (10_000, 100_000, 1_000_000, 4_000_000, 10_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    users: int = 100_000
    rate: int = 3_000  # frames a second in `steady`
    # Seconds in `steady` in which all users send, and then in which users fall silent. No
    # other measuring window is longer.
    seconds: float = 30.0
    timeout_s: float = 10.0  # of the users that fall silent
    sizes: tuple[int, ...] = (10_000, 100_000)  # users in `cost` and `lateness`
    without: tuple[str, ...] = ()  # systems to leave out of these two
    rounds: int = 3  # in `cost`; the best counts
    # The folder of the sidecar's files, on the disk to measure. None: the temporary folder.
    folder: Path | None = None

    def at_most_s(self, pause_s: float) -> float:
        """A pause between measurements; shorter in a run that only shows that all runs."""
        return min(pause_s, self.seconds / 5)


def full_options(users: int) -> BenchOptions:
    """The options for which the floors for *users* are promised."""
    is_large = users > BenchOptions().users
    sizes = tuple(size for size in SIZES if size <= 4 * users)
    return BenchOptions(
        users=users,
        rate=33_000 if is_large else 3_000,
        # Above a million, a keepalive of each user takes the load seconds.
        timeout_s=30.0 if users > 1_000_000 else BenchOptions().timeout_s,
        sizes=sizes,
    )


FULL: Final = full_options(100_000)
# Shows that everything works; the figures mean nothing.
QUICK: Final = BenchOptions(
    users=500, rate=500, seconds=1.0, timeout_s=2.0, sizes=(500,), rounds=1
)

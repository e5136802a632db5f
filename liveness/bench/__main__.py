"""`python -m liveness.bench`: options in, a table out; 1 if a floor was missed."""

import argparse
import gc
import json
import math
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from liveness.bench import machine
from liveness.bench.figures import Figure, as_table
from liveness.bench.scenarios import SCENARIOS, Options
from liveness.errors import LivenessError

FAILED = 2  # nothing could be measured; 1 is a missed floor
INTERRUPTED = 130  # as a shell reports SIGINT
TERMINATED = 143  # and SIGTERM


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether every floor was kept.

    Args:
        arguments: Without the program's name; None: those of the process.
    Returns:
        0 if all floors were kept, 1 if one was missed, 2 if measuring failed, 130
        after Ctrl-C.
    """
    given = _arguments(arguments)
    options = Options(
        users=given.users,
        rate=given.rate,
        seconds=given.seconds,
        timeout_s=given.timeout,
        folder=given.folder,
    )
    # An end by SIGTERM takes the server and its files along, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    # The client's own pauses would count as the server's lateness.
    gc.disable()
    found = machine.facts(options.folder)
    print(machine.as_line(found), flush=True)
    figures: list[Figure] = []
    try:
        for name in given.only or SCENARIOS:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            figures += SCENARIOS[name](options)
    except (LivenessError, OSError) as error:
        print(f"liveness bench: {name}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    print(as_table(figures), end="")
    if given.json is not None:
        report = {
            "machine": found,
            "options": {
                key: value
                for key, value in vars(given).items()
                if key not in ("json", "folder")
            },
            "figures": [figure.as_map() for figure in figures],
        }
        given.json.write_text(f"{json.dumps(report, indent=2)}\n")
    return 0 if all(figure.is_met for figure in figures) else 1


def _at_least(kind: type[int | float], low: int) -> Callable[[str], int | float]:
    def read(text: str) -> int | float:
        value = kind(text)
        if not low <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not {low} or more")
        return value

    read.__name__ = kind.__name__  # what argparse calls it in an error
    return read


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m liveness.bench",
        description="Measures the sidecar on this machine, from a gateway's side.",
        epilog="Example: python -m liveness.bench --only steady --seconds 60",
    )
    add = parser.add_argument
    add(
        "--users",
        type=_at_least(int, 100),
        default=100_000,
        metavar="N",
        help="users (%(default)s)",
    )
    add(
        "--rate", type=_at_least(int, 1), default=3_000, metavar="N",
        help="steady: frames a second (%(default)s)",
    )  # fmt: skip
    add(
        "--seconds", type=_at_least(float, 1), default=30.0, metavar="S",
        help="steady: for so long users fall silent (%(default)g)",
    )  # fmt: skip
    add(
        "--timeout", type=_at_least(float, 1), default=10.0, metavar="S",
        help="silence timeout of those that fall silent (%(default)g)",
    )  # fmt: skip
    add(
        "--only", action="append", choices=SCENARIOS, metavar="NAME",
        help=f"of {', '.join(SCENARIOS)}; may be repeated",
    )  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write the figures there too")
    add(
        "--folder", type=Path, metavar="DIR",
        help="where the server may write (the temporary folder): its disk is measured",
    )  # fmt: skip
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

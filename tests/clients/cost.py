"""The cost of an event in each client, as the table of `proto/clients/README.md`.

    python -m tests.clients.cost            the table, on standard output

Each client's bench program reports keepalives of all its users, round after round, to a
sidecar of its own. The clients take turns, and the best of their runs counts: the machine
may be busy with something else.
"""

import json
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from liveness.lab.bench.sidecars import fresh_sidecar
from tests.clients.programs import CLIENTS
from tests.helpers.tree import ROOT

USERS: Final = 100_000
ROUNDS: Final = 10
RUNS: Final = 3
TIMEOUT_S: Final = 3_600.0  # nobody falls silent here
PROGRAM_S: Final = 300.0

PYTHON: Final = f"{shlex.quote(sys.executable)} -m tests.clients.python_bench"


def measured(command: str, *, users: int, rounds: int) -> dict[str, Any]:
    """The output of a bench program, with a sidecar of its own."""
    with (
        TemporaryDirectory(prefix="liveness-cost-") as folder,
        fresh_sidecar(Path(folder), timeout_s=TIMEOUT_S) as sidecar,
    ):
        sidecar.start()
        flags = ["--sidecar", sidecar.socket, "--users", users, "--rounds", rounds]
        words = [*shlex.split(command), *map(str, flags)]
        done = subprocess.run(
            words, cwd=ROOT, stdout=subprocess.PIPE, timeout=PROGRAM_S, check=True
        )
        sidecar.check()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measures all clients, and prints the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    commands = {"Python": PYTHON}
    commands |= {client.language: client.bench_command() for client in CLIENTS.values()}
    costs: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(options.runs):
        for language, command in commands.items():
            found = measured(command, users=options.users, rounds=options.rounds)
            costs[language].append(found["cpu_s"] / found["events"] * 1e6)
            print(f"{language}: {costs[language][-1]:.3f} us", file=sys.stderr)
    print("| client | CPU an event |\n|---|---|")
    for language, found_us in sorted(costs.items(), key=lambda item: min(item[1])):
        print(f"| {language} | {min(found_us):.2f} µs |")


if __name__ == "__main__":
    main()

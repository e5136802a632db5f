"""`make audit`: every part of it, one after the other, whatever the others find."""

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.audit import leaks, licences, vulnerabilities
from tests.audit.locked import locks, pins
from tests.audit.verdict import Verdict


def verdicts(root: Path) -> Iterator[Verdict]:
    """What each part has found, the quickest first."""
    yield licences.look(pins(locks(root)))
    yield leaks.look(root)
    yield vulnerabilities.look(locks(root))


def main() -> int:
    """Say it all; 1 if there is a fault."""
    faults = 0
    for verdict in verdicts(Path(__file__).parents[2]):
        print(verdict, flush=True)
        faults += len(verdict.faults)
    print(f"audit: {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

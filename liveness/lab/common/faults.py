"""What judges have found: each fault once, and no more than can be kept."""

from collections import Counter
from typing import Final, NamedTuple

from liveness.lab.common.promises import Breach

KINDS: Final = ("early", "missed", "false")
MAX_LISTED: Final = 1_000  # in a demo that runs for a day


class Fault(NamedTuple):
    """Something that must not happen: its kind, the user or timer, and what was broken."""

    kind: str
    who: str
    breach: Breach


class Faults:
    """Counts faults, and lists the first ones."""

    def __init__(self) -> None:
        self.listed: list[Fault] = []
        self.counts = Counter[str]()  # by kind
        self._open = set[tuple[str, str]]()  # kind and user, until `forget`

    def add(self, kind: str, who: str, breach: Breach) -> None:
        """Counts a fault, unless the same one is counted already."""
        if (kind, who) in self._open:
            return
        self._open.add((kind, who))
        self.counts[kind] += 1
        if len(self.listed) < MAX_LISTED:
            self.listed.append(Fault(kind, who, breach))

    def excuse(self, kind: str, who: str) -> None:
        """Counts no such fault until `forget`: it would follow from another one."""
        self._open.add((kind, who))

    def forget(self, who: str) -> None:
        """The next fault of this user is another one."""
        for kind in KINDS:
            self._open.discard((kind, who))

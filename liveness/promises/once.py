"""3, once: a session ends with exactly one record."""

from collections.abc import Iterator

from liveness.promises.breach import Breach
from liveness.promises.run_evidence import RunEvidence


def once(run: RunEvidence) -> Iterator[Breach]:
    """Every session ends once, and only the user's current one does."""
    yield from run.log_breaches(3)

"""1, never early: a whole timeout passes before a user is reported silent."""

from collections.abc import Iterator

from tests.promises.run_evidence import RunEvidence
from tests.promises.run_history import STAMP_S


def never_early(run: RunEvidence) -> Iterator[str]:
    """A whole timeout passed since everything heard."""
    for it in run.silences:
        if it.record["silence"] < it.least - STAMP_S:
            yield f"{it.record}, and its timeout is {it.least:g}"
        for sign, silence_s, whole_s in it.recent:
            if run.history.passed(sign, it.at) < whole_s - STAMP_S:
                yield (
                    f"{it.record} at {it.at:.3f}, and of its connection something was "
                    f"in the socket at {sign:.3f}, {silence_s:.3f} s before"
                )

"""Decides when a failed request is sent again, and when it is given up."""

from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from liveness.config.outlet_settings import RETRY_JITTER


class NextTry(NamedTuple):
    """When the next attempt is made."""

    wait_s: float
    rung: int  # the waits used up by then


def next_try(
    waits_s: Sequence[float], rung: int, *, asked_s: float | None, drawn: float
) -> NextTry | None:
    """When to send a request again; None: no more.

    A receiver may request a longer wait, but cannot make the whole ladder longer: that wait
    uses up as many rungs as last that long together, and ends with the last rung.

    Args:
        waits_s: The ladder: the waits before each further attempt.
        rung: The number of waits used up.
        asked_s: The wait requested by `Retry-After`, in seconds.
        drawn: A random number from 0 to 1, for the jitter.
    """
    if rung >= len(waits_s):
        return None
    wait_s = planned_s = waits_s[rung]
    rung += 1
    if asked_s is not None:
        while planned_s < asked_s and rung < len(waits_s):
            planned_s += waits_s[rung]
            rung += 1
        wait_s = max(wait_s, min(asked_s, planned_s))
    return NextTry(wait_s * (1 + RETRY_JITTER * drawn), rung)


def asked_wait_s(header: str, now_ms: int) -> float | None:
    """The wait requested by `Retry-After`, in seconds; None: it is not valid."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_ms / 1000)
    except (ValueError, OverflowError):
        return None

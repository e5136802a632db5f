"""Rules of the promises on times and attempts, of the checker."""


def is_early(waited_s: float, whole_s: float, slack_s: float = 0.0) -> bool:
    """1: whether less than the whole time has passed, by more than the clocks' error."""
    return waited_s < whole_s - slack_s


def is_late(late_s: float, most_s: float) -> bool:
    """2: whether a report came later than allowed."""
    return late_s > most_s


def is_next_attempt(
    attempt: int, before: int, *, is_anew: bool = False, is_again: bool = False
) -> bool:
    """7: whether an attempt of a timer may follow another.

    Args:
        attempt: Its number.
        before: The number of the one before; 0 if there was none.
        is_anew: Whether the timer may have been created again.
        is_again: Whether the attempt before may have been lost with its gateway.
    """
    return attempt == before + 1 or (is_anew and attempt == 1) or is_again

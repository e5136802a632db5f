"""Equal shares: the many of one gateway do not delay the few of another."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def fair_share(waiting: Sequence[T], limit: int, take: Callable[[T, int], int]) -> int:
    """Give each of *waiting* an equal share of *limit*; what one leaves, others use.

    Args:
        waiting: Whose turn it is, in this order.
        limit: How many may be taken in all.
        take: Takes so many from one, if it has them, the last of which may count for
            several; returns how many it took.
    Returns:
        How many were taken.
    """
    taken = 0
    while waiting and taken < limit:
        share = max(1, (limit - taken) // len(waiting))
        may_have_more: list[T] = []
        for one in waiting:
            if taken >= limit:
                break
            took = take(one, min(share, limit - taken))
            taken += took
            if took >= share:
                may_have_more.append(one)
        waiting = may_have_more
    return taken

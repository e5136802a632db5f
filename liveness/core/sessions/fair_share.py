"""Equal shares: the many users or timers of one gateway do not delay another's few."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def fair_share(waiting: Sequence[T], limit: int, take: Callable[[T, int], int]) -> int:
    """Give each queue an equal share of *limit*; the others use what one leaves.

    The queues are in the order of their turns. *take* takes up to a number of items from
    a queue and returns how many; the last item may count for several. Returns how many
    were taken.
    """
    taken = 0
    while waiting and taken < limit:
        share = max(1, (limit - taken) // len(waiting))
        may_have_more: list[T] = []
        for queue in waiting:
            if taken >= limit:
                break
            took = take(queue, min(share, limit - taken))
            taken += took
            if took >= share:
                may_have_more.append(queue)
        waiting = may_have_more
    return taken

"""Ends that have arrived: loops that have not finished them, and acknowledgements."""

from collections import defaultdict
from functools import partial
from typing import Final

import pytest

from liveness.client.inbox import Arrival, End, Inbox

# Records arrive: ends ("add") and others. A loop takes ends ("a reads 1 2": the last one
# stays unfinished; "a reads 1 2 .": and there are no more), and is left. "finished" is the
# seq up to which records may be acknowledged.
SCENES: Final = """\
an end is finished when its loop comes back for the next
    add 3 5, finished 2, a reads 3, finished 2, a reads 5, finished 4, a reads ., finished 5
other records are finished as they come
    other 3 4, finished 4, add 5, other 6 7, finished 4, a reads 5 ., finished 7
ends wait for the first loop
    add 1 2, other 3, finished 0, a reads 1 2 ., finished 3
without records nothing is finished
    finished 0, a reads ., finished 0
two loops share the ends, and only what both have finished is finished
    add 1 2 3, a reads 1, b reads 2 3 ., finished 0, a reads ., finished 3
ends that a loop left unfinished go to the next loop, in order
    add 1 2 3, a reads 1 2, a leaves, finished 1, add 4, b reads 2 3 4 ., finished 4
a loop that was left and had finished everything holds nothing back
    add 1 2, a reads 1 2 ., a leaves, finished 2
two loops that were left hold back the ends that they had
    add 1 2 3, a reads 1, b reads 2, b leaves, a leaves, c reads 1 2 3 ., finished 3
an end that is withdrawn while it waits is skipped
    add 1 2 3, withdraw 2, a reads 1 3, withdraw 3, finished 2, a reads ., finished 3
a withdrawn end is not given again when its loop is left
    add 1 2, a reads 1, withdraw 1, a leaves, b reads 2 ., finished 2
a withdrawn end holds nothing back once its loop is left
    add 1, other 2, a reads 1, withdraw 1, finished 0, a leaves, finished 2
a withdrawn end behind another holds nothing back once its loop is left
    add 1 2, a reads 1, b reads 2, withdraw 2, b leaves, finished 0, a reads ., finished 2
ends that wait for a first loop outlive their log
    add 7, new log, add 1, finished 0, a reads 0 1 ., finished 1
an end that a loop has outlives its log
    add 7, a reads 7, new log, add 1, finished 0, a reads 1, finished 0, a reads ., finished 1
"""


class Loop:
    current: Arrival | None = None


def scenes() -> dict[str, list[str]]:
    """The steps of each scene, by its title."""
    found, title = dict[str, list[str]](), ""
    for line in SCENES.splitlines():
        if line.startswith(" "):
            found[title] += line.strip().split(", ")
        else:
            title = line
            found[title] = []
    return found


@pytest.mark.parametrize("steps", scenes().values(), ids=scenes())
def test_the_scene(steps: list[str]) -> None:
    inbox, loops = Inbox(), defaultdict[str, Loop](Loop)

    def read(name: str) -> int | None:
        loop = loops[name]
        if loop.current is not None:
            inbox.finish(loop.current)
        loop.current = arrival = inbox.take(loop)
        return None if arrival is None else arrival.seq

    for step in steps:
        match step.split():
            case ["add" | "other" as what, *seqs]:
                for seq in map(int, seqs):
                    assert inbox.is_new(seq)
                    end = End("ada", seq, "silence", {"seq": seq})
                    inbox.add(seq, end if what == "add" else None)
            case ["withdraw", conn]:
                inbox.withdraw("ada", int(conn))
            case ["finished", seq]:
                assert inbox.finished == int(seq), step
            case ["new", "log"]:
                inbox.begin_log()
            case [name, "reads", *seqs, "."]:
                taken = [*iter(partial(read, name), None)]
                assert taken == [*map(int, seqs)], step
            case [name, "reads", *seqs]:
                assert [read(name) for _ in seqs] == [*map(int, seqs)], step
            case [name, "leaves"]:
                del loops[name]
            case _:
                raise AssertionError(step)

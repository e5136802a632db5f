"""Records from the log to its readers: in order, at least once, until acknowledged.

The scripted sidecar runs these tests too (`tests/testing/test_conformance.py`). Windows, pongs and
what waits for the disk: `tests/service/links/test_links.py`.
"""

from tests.helpers.wire import Record
from tests.system.client import Client, Uid
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar


def seqs(records: list[Record]) -> list[int]:
    return [record["seq"] for record in records]


def come_and_go(link: Client, *uids: Uid) -> None:
    """One offline for each, on disk."""
    link.send("login", list(uids))
    link.apply("logout", list(uids))


def nothing_more(link: Client) -> bool:
    """Whether no record is left to be sent.

    The first pong comes once all records are on disk, the second once they were sent.
    """
    link.sync()
    link.sync()
    return not link.records


# --- cursors and acks ---------------------------------------------------------------------


def test_what_was_not_acknowledged_comes_again_after_a_reconnect(
    sidecar: Sidecar,
) -> None:
    link = sidecar.gateway("again")
    come_and_go(link, "a", "b", "c", "d")
    first = link.take(4)
    assert nothing_more(link)
    link.close()
    link = sidecar.gateway("again")
    assert link.take(4) == first
    link.send("ack", first[2]["seq"])
    link.apply("ack", first[0]["seq"])  # never back
    link.close()
    link = sidecar.gateway("again")
    assert link.take(1) == first[3:]
    link.apply("ack", first[3]["seq"])
    link.close()
    assert nothing_more(sidecar.gateway("again"))


def test_a_hello_may_name_where_to_read_on(sidecar: Sidecar) -> None:
    link = sidecar.gateway("source")
    come_and_go(link, "p", "q")
    (first, second), log = link.take(2), link.log
    for after, of_log, told in (
        (0, None, [first, second]),
        (0, "another log", [first, second]),
        (first["seq"] - 1, log, [first, second]),
        (first["seq"], log, [second]),
        (second["seq"], log, []),
        (second["seq"] + 1, log, [first, second]),  # a log that has lost its end
        (2**62, log, [first, second]),
        (second["seq"], "another log", [first, second]),
    ):
        reader = sidecar.gateway(
            "source",
            role="watcher",
            scope="own",
            kinds=["offline"],
            ack=False,
            after=after,
            log=of_log,
        )
        assert (after, of_log, reader.take(len(told))) == (after, of_log, told)
        assert nothing_more(reader)


def test_a_new_name_begins_at_now_and_a_crash_right_after_welcome_does_not_lose_that(
    start: Start,
) -> None:
    sidecar = start()
    other = sidecar.gateway("other")
    come_and_go(other, "before")
    for role in ("gateway", "watcher"):
        assert sidecar.gateway("new", role=role, scope="all").next == 3
    sidecar.kill()
    sidecar.start()
    come_and_go(sidecar.gateway("other"), "after")
    as_watcher = sidecar.gateway("new", role="watcher", scope="all")
    assert seqs(as_watcher.take(2)) == [3, 4]
    as_gateway = sidecar.gateway("new", scope="all")
    assert seqs(as_gateway.take(1)) == [4]

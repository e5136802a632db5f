"""`liveness.connect_sync`: a gateway of threads against a sidecar process.

A whole server of threads is in docs/gateway.md, and runs in test_documents.py.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

import liveness
from tests.system.sidecar import SOON_S, Sidecar, eventually


class Reader:
    """A thread that reads to the end, and what came of it."""

    def __init__(self, reading: Iterator[Any]) -> None:
        self.taken = list[Any]()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read, args=[reading], daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join(SOON_S)
        assert not self._thread.is_alive()

    def _read(self, reading: Iterator[Any]) -> None:
        try:
            for item in reading:
                self.taken.append(item)
        except Exception as error:
            self.error = error


def test_the_use_in_the_docs_works_as_it_stands(quick: Sidecar, name: str) -> None:
    with liveness.connect_sync(quick.socket, name=name) as sidecar:
        assert sidecar.name == name
        sidecar.connected()
        assert sidecar.state == "linked"
        conn = sidecar.new_conn()
        sidecar.login(f"{name}:ada", conn=conn)
        sidecar.keepalive(f"{name}:ada", conn=conn)
        sidecar.message(f"{name}:ada", conn=conn)
        for end in sidecar.ended():
            assert (end.uid, end.conn, end.reason) == (f"{name}:ada", conn, "silence")
            break
        # The loop was left without coming back, so it is given again to the next one.
        assert next(sidecar.ended()) == end


def test_reports_of_many_threads_all_arrive(sidecar: Sidecar, name: str) -> None:
    threads, each = 8, 250

    with liveness.connect_sync(sidecar.socket, name=name) as client:

        def report(thread: int) -> None:
            for n in range(each):
                uid, conn = f"{name}:{thread}:{n}", client.new_conn()
                client.login(uid, conn=conn)
                client.message(uid, conn=conn)
                client.keepalive(uid, conn=conn)
                if n % 2:
                    client.logout(uid, conn=conn)
            with pytest.raises(liveness.ReportError):
                client.login("", conn=1)
            client.flush()

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(report, range(threads), timeout=SOON_S))
        assert client.stats() == (
            *(threads * each // 2, 0, 0, 1),
            *(0 for _ in range(7)),
        )
    online, _seq = sidecar.watcher().listed()
    ours = [row[2] for row in online.values() if row[0] == name]
    assert len(ours) == len(set(ours)) == threads * each // 2


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()], ids=repr)
def test_an_error_inside_comes_out_as_it_is_and_no_thread_stays(
    sidecar: Sidecar, name: str, error: BaseException
) -> None:
    before = set(threading.enumerate())
    readers = list[Reader]()

    def fail() -> None:
        with liveness.connect_sync(sidecar.socket, name=name) as client:
            readers.append(Reader(client.ended()))
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    readers[0].wait()
    assert readers[0].error is None
    # trio keeps threads that it used for another ten seconds.
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert all(name.startswith("Trio thread") for name in left), left


def test_leaving_writes_the_last_reports_and_ends_every_loop(
    sidecar: Sidecar, name: str
) -> None:
    with liveness.connect_sync(sidecar.socket, name=name) as client:
        reader = Reader(client.ended())
        client.login(f"{name}:a", conn=1)
    reader.wait()
    assert (reader.taken, reader.error) == ([], None)
    assert sidecar.watcher().where(f"{name}:a")
    for wait in (client.flush, client.connected):
        with pytest.raises(anyio.ClosedResourceError):
            wait()
    assert list(client.ended()) == []


def test_waiting_in_the_event_loops_own_thread_is_an_error_that_says_so(
    sidecar: Sidecar, name: str
) -> None:
    with (
        liveness.connect_sync(sidecar.socket, name=name) as client,
        pytest.raises(RuntimeError, match="from the event loop thread"),
    ):
        client._portal.call(client.connected)


@pytest.fixture
def _frequent_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("_frequent_switches")
def test_one_thread_may_log_out_a_user_whose_end_another_is_being_given(
    sidecar: Sidecar, name: str
) -> None:
    users, turns = 100, 20
    own: dict[str, Any] = {"name": name, "scope": "own", "kinds": ["moved"], "after": 0}
    with (
        liveness.connect_sync(sidecar.socket, name=name) as client,
        liveness.watch_sync(sidecar.socket, **own) as watch,
    ):

        def log_out() -> Iterator[None]:
            for record in watch:
                client.logout(record["uid"], conn=record["from_conn"])
                yield

        ends, logouts = Reader(client.ended()), Reader(log_out())
        for turn in range(turns):
            for n in range(users):  # from the second turn on, each moves
                client.login(f"{name}:{n}", conn=client.new_conn())
            client.flush()
            moved = turn * users
            eventually(lambda n=moved: len(logouts.taken) >= n)  # type: ignore[misc]
    ends.wait()
    logouts.wait()
    assert (ends.error, logouts.error) == (None, None)

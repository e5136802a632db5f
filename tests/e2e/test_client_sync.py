"""`liveness.connect_sync`: a gateway of threads against a sidecar process."""

import socket
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from time import perf_counter
from typing import Any

import anyio
import pytest

import liveness
from tests.e2e.conftest import QUICK_FLUSH_S, Start
from tests.e2e.sidecar import SOON_S, Sidecar, eventually


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
            for one in reading:
                self.taken.append(one)
        except Exception as error:
            self.error = error


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Has *count* threads do it at once."""
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count), timeout=SOON_S))


def test_the_use_in_the_docs_works_as_it_stands(quick: Sidecar, name: str) -> None:
    with liveness.connect_sync(quick.socket, name=name) as sidecar:
        assert sidecar.name == name
        sidecar.connected()
        assert sidecar.is_connected
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
            client.flush()

        in_threads(threads, report)
        stats = client.stats()
        assert (stats.open, stats.pending, stats.refused) == (threads * each // 2, 0, 0)
    online, _seq = sidecar.watcher().listed()
    ours = [row[2] for row in online.values() if row[0] == name]
    assert len(ours) == len(set(ours)) == threads * each // 2


def test_bad_reports_raise_at_the_call_in_every_thread(
    sidecar: Sidecar, name: str
) -> None:
    with liveness.connect_sync(sidecar.socket, name=name) as client:

        def report(_thread: int) -> None:
            with pytest.raises(liveness.ReportError):
                client.login("", conn=1)

        in_threads(8, report)
        client.flush()
        assert client.stats() == (0, 0, 0, 1, 0, 0, 0, 0, 0)


def test_what_was_reported_last_is_written_on_leaving(
    sidecar: Sidecar, name: str
) -> None:
    with liveness.connect_sync(sidecar.socket, name=name) as client:
        client.login(f"{name}:a", conn=1)
        client.login(f"{name}:b", conn=2)
        client.connected()
        client.logout(f"{name}:a", conn=1)
    assert [row[0] for row in sidecar.watcher().where(f"{name}:a", f"{name}:b")] == [
        f"{name}:b"
    ]


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
    left = [one.name for one in set(threading.enumerate()) - before]
    assert all(one.startswith("Trio thread") for one in left), left


def test_leaving_ends_the_loop_of_a_thread_that_waits_for_ends(
    sidecar: Sidecar, name: str
) -> None:
    with liveness.connect_sync(sidecar.socket, name=name) as client:
        readers = [Reader(client.ended()), Reader(client.records())]
        client.login(f"{name}:a", conn=1)
        client.flush()
    for reader in readers:
        reader.wait()
        assert (reader.taken, reader.error) == ([], None)


def test_waiting_after_leaving_says_that_it_is_closed(
    sidecar: Sidecar, name: str
) -> None:
    with liveness.connect_sync(sidecar.socket, name=name) as client:
        client.connected()
    for wait in (client.flush, client.connected):
        with pytest.raises(anyio.ClosedResourceError):
            wait()
    assert list(client.ended()) == []


def test_waiting_in_the_very_thread_that_it_waits_for_is_told_as_what_it_is(
    sidecar: Sidecar, name: str
) -> None:
    with (
        liveness.connect_sync(sidecar.socket, name=name) as client,
        pytest.raises(RuntimeError, match="from the event loop thread"),
    ):
        client._portal.call(client.connected)


def test_replaced_is_raised_from_every_call_every_loop_and_on_leaving(
    sidecar: Sidecar, name: str
) -> None:
    with pytest.raises(liveness.Replaced) as caught:  # noqa: PT012, SIM117
        with liveness.connect_sync(sidecar.socket, name=name) as older:
            older.login(f"{name}:a", conn=1)
            older.connected()
            reader = Reader(older.ended())
            with liveness.connect_sync(sidecar.socket, name=name, fresh=False) as newer:
                newer.login(f"{name}:b", conn=2)
                newer.flush()
                reader.wait()
                calls: list[Callable[[], object]] = [
                    lambda: older.login(f"{name}:a", conn=1),
                    lambda: older.keepalive(f"{name}:a", conn=1),
                    lambda: older.message(f"{name}:a", conn=1),
                    lambda: older.logout(f"{name}:a", conn=1),
                    lambda: next(older.ended()),
                    older.flush,
                    older.connected,
                ]
                for call in calls:
                    with pytest.raises(liveness.Replaced):
                        call()
                assert newer.stats().links == 1
                assert sidecar.watcher().where(f"{name}:b")
    assert caught.value.code == "replaced"
    assert isinstance(reader.error, liveness.Replaced)


def test_replaced_is_raised_from_a_call_that_waits(sidecar: Sidecar, name: str) -> None:
    def serve() -> None:
        with liveness.connect_sync(sidecar.socket, name=name) as older:
            older.connected()
            is_linked.set()
            until = perf_counter() + SOON_S
            while perf_counter() < until:
                older.flush()

    for _ in range(5):  # it may be met at any moment
        is_linked = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve)
            assert is_linked.wait(SOON_S)
            with liveness.connect_sync(sidecar.socket, name=name) as newer:
                newer.connected()
                with pytest.raises(liveness.Replaced):
                    served.result(SOON_S)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("hasty")
def test_an_end_may_be_logged_out_by_one_thread_as_another_is_handed_it(
    sidecar: Sidecar, name: str
) -> None:
    users, turns = 100, 20
    with liveness.connect_sync(sidecar.socket, name=name) as client:

        def log_out() -> Iterator[None]:
            for record in client.records():
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


@pytest.mark.slow
def test_threads_go_on_over_a_restart_of_the_sidecar(start: Start, name: str) -> None:
    sidecar = start(1.5, flush_s=QUICK_FLUSH_S)
    is_over = threading.Event()
    with liveness.connect_sync(sidecar.socket, name=name) as client:
        client.login("silent", conn=0, timeout=3)

        def report(thread: int) -> None:
            for n in range(25):
                client.login(f"{thread}:{n}", conn=100 * thread + n)
            while not is_over.wait(0.2):
                for n in range(25):
                    client.keepalive(f"{thread}:{n}", conn=100 * thread + n)

        with ThreadPoolExecutor(4) as pool:
            reports = [pool.submit(report, thread) for thread in range(1, 5)]
            try:
                client.flush()
                sidecar.kill()
                sidecar.start()
                eventually(lambda: client.stats().links == 2)
                assert next(client.ended()).uid == "silent"
            finally:
                is_over.set()
            for one in reports:
                one.result(SOON_S)
        assert client.stats().open == 100
    kinds = Counter(one.kind for one in sidecar.log())
    assert kinds == {"online": 101, "offline": 1}


# --- a plain server of threads ---------------------------------------------------------


class Lines(socketserver.ThreadingTCPServer):
    """A gateway as one is written without an event loop: a thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, sidecar: liveness.SyncSidecar) -> None:
        self.sidecar = sidecar
        self.sockets: dict[int, socket.socket] = {}
        super().__init__(("127.0.0.1", 0), Connection)

    def close_ended(self) -> None:
        for end in self.sidecar.ended():
            assert end.conn is not None
            if sock := self.sockets.get(end.conn):
                with suppress(OSError):  # the user has just left
                    sock.shutdown(socket.SHUT_RDWR)


class Connection(socketserver.StreamRequestHandler):
    """The first line is the uid, and every other one a message."""

    server: Lines

    def handle(self) -> None:
        sidecar, conn = self.server.sidecar, self.server.sidecar.new_conn()
        uid = self.rfile.readline().decode().strip()
        self.server.sockets[conn] = self.request
        sidecar.login(uid, conn=conn)
        try:
            for _line in self.rfile:
                sidecar.message(uid, conn=conn)
        finally:
            del self.server.sockets[conn]
            sidecar.logout(uid, conn=conn)


@contextmanager
def serving(sidecar: Sidecar, name: str) -> Iterator[Lines]:
    with liveness.connect_sync(sidecar.socket, name=name) as client:
        client.connected()
        with Lines(client) as server, ThreadPoolExecutor(1) as pool:
            threading.Thread(target=server.close_ended, daemon=True).start()
            serve = pool.submit(server.serve_forever, 0.01)
            try:
                yield server
            finally:
                server.shutdown()
            serve.result(SOON_S)


def test_a_server_of_threads_closes_who_is_silent_and_nobody_else(
    quick: Sidecar, name: str
) -> None:
    watcher = quick.watcher()
    with serving(quick, name) as server:
        port = server.server_address[1]
        talker, silent, leaver, first, second = socks = [
            socket.create_connection(("127.0.0.1", port), SOON_S) for _ in range(5)
        ]
        for uid, sock in zip("tslmm", socks, strict=True):
            sock.sendall(f"{name}:{uid}\n".encode())
            known = len(watcher.records)
            watcher.until(lambda records, known=known: len(records) > known)  # type: ignore[misc]
        leaver.close()
        assert first.recv(1) == b""  # moved to the second connection
        until = perf_counter() + SOON_S
        silent.settimeout(0.2)
        while True:  # the others go on until the silent one is closed
            assert perf_counter() < until
            talker.sendall(b"hello\n")
            second.sendall(b"hello\n")
            try:
                assert silent.recv(1) == b""
                break
            except TimeoutError:
                continue
        uids = [f"{name}:{uid}" for uid in "tslm"]
        online = {row[0] for row in watcher.where(*uids)}
        assert online == {f"{name}:t", f"{name}:m"}
        for sock in socks:
            with closing(sock):
                pass
        eventually(lambda: server.sidecar.stats().open == 0)

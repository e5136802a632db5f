"""`liveness record` between real gateways and a real sidecar, and `liveness replay`."""

import json
import random
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import pytest

import liveness
from tests.helpers.processes import Done, environment, ran
from tests.helpers.tree import ROOT
from tests.helpers.wire import packed
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import READY_S, SOON_S, Sidecar, eventually

BIG: Final = 2**63 - 1  # beyond what doubles hold


class Recording:
    """A recorder in front of a sidecar: a process, its socket and its file."""

    def __init__(self, folder: Path, to: Path, *flags: str, out: str = "") -> None:
        self.socket, self.file = folder / "record.sock", folder / "traffic.jsonl"
        self.is_raw = "--raw" in flags
        command = [sys.executable, "-m", "liveness", "record", str(self.socket)]
        command += ["--to", str(to), *flags]
        if not out:
            command += ["--out", str(self.file)]
        with open(out or "/dev/null", "wb") as stdout:  # noqa: PTH123 - a device
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(),
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
            )
        self._clients: list[Client] = []
        assert "recording the links" in self.report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for client in self._clients:
            client.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(SOON_S)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def report(self) -> str:
        """The next line on stderr."""
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def connect(self) -> Client:
        client = Client(self.socket)
        self._clients.append(client)
        return client

    def gateway(self, name: str, **hello: Any) -> Client:
        client = self.connect()
        client.hello(name, **hello)
        return client

    def lines(self) -> list[dict[str, Any]]:
        """What is in the file by now, but for an incomplete last line."""
        text = self.file.read_text()
        return [json.loads(line) for line in text.splitlines(True) if line[-1:] == "\n"]

    def line_with(self, **fields: object) -> dict[str, Any]:
        """Waits for a line with these fields."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines() if fields.items() <= line.items()]

        eventually(lambda: bool(found()), lambda: f"{fields} not in {self.lines()}")
        return found()[0]

    def stop(self) -> list[dict[str, Any]]:
        """Ends it by SIGTERM; the lines of its file."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(READY_S) == 0
        assert not self.socket.exists()
        return self.lines()


Record = Callable[..., Recording]


@pytest.fixture
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """Starts recorders, and ends them at the end."""
    with ExitStack() as stack:

        def started(to: Sidecar | Path, *flags: str, out: str = "") -> Recording:
            folder = tmp_path_factory.mktemp("r")
            path = to.socket if isinstance(to, Sidecar) else to
            return stack.enter_context(Recording(folder, path, *flags, out=out))

        yield started


def replayed(file: Path, sidecar: Sidecar, *flags: str) -> Done:
    command = [sys.executable, "-m", "liveness", "replay", str(file), "--json"]
    command += ["--socket", str(sidecar.socket), *flags]
    return ran(*command, cwd=ROOT, env=environment(), timeout=READY_S)


def totals(done: Done) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def decided(sidecar: Sidecar) -> list[tuple[Any, ...]]:
    """The log, without what differs from run to run."""
    return [
        (record.kind, record.uid, record.gateway, record.conn, record.reason)
        for record in sidecar.log()
    ]


# --- the recorder ---------------------------------------------------------------------


def test_both_directions_pass_and_are_lines_of_frames(
    sidecar: Sidecar, record: Record, name: str
) -> None:
    recording = record(sidecar)
    assert stat.S_IMODE(recording.socket.stat().st_mode) == 0o660
    assert stat.S_IMODE(recording.file.stat().st_mode) == 0o600
    gateway = recording.gateway(name)
    gateway.send("login", f"{name}-ada", {"conn": BIG})
    gateway.send("login", BIG, {"conn": 1})
    gateway.sync()
    assert gateway.where(f"{name}-ada") == [[f"{name}-ada", name, 1, BIG]]
    gateway.send("logout", BIG)
    gateway.close()
    recording.line_with(link=1, event="close")
    header, *lines, end = recording.stop()
    assert header["traffic"] == 1
    assert (end["event"], end["why"]) == ("end", "stopped")
    sent = [line.get("frame", line.get("event")) for line in lines if line["link"] == 1]
    assert sent[1] == ["hello", {"protocol": 1, "name": name}]
    assert ["login", f"{name}-ada", {"conn": f"int:{BIG}"}] in sent
    assert ["where", [[f"{name}-ada", name, 1, f"int:{BIG}"]]] in sent
    assert ["logout", f"int:{BIG}"] in sent
    assert sent[0] == "open"
    assert sent[-3:] == ["eof", "eof", "close"]


def test_a_half_frame_passes_at_once_and_is_recorded_as_bytes(
    sidecar: Sidecar, record: Record, name: str
) -> None:
    recording = record(sidecar)
    gateway = recording.gateway(name)
    frame = packed(["ping", 7])
    gateway.send_bytes(frame[:4])
    assert recording.line_with(hex=frame[:4].hex())["from"] == "gateway"
    gateway.send_bytes(frame[4:])
    assert gateway.expect("pong") == [7]
    recording.line_with(hex=frame[4:].hex())


def test_a_half_closed_link_still_gets_its_answers(
    sidecar: Sidecar, record: Record
) -> None:
    recording = record(sidecar)
    client = recording.connect()
    client.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
    client.say_no_more()
    assert client.refusal()["code"] == "bad-frame"
    assert client.receive() is None
    recording.line_with(link=1, event="close")


@pytest.fixture
def ends(record: Record, tmp_path: Path) -> Iterator[list[socket.socket]]:
    """Both ends of a link through a recorder: the gateway's, and the sidecar's."""
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as one,
    ):
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        one.connect(str(record(tmp_path / "s").socket))
        other, _ = listener.accept()
        with other:
            one.settimeout(SOON_S)
            other.settimeout(SOON_S)
            yield [one, other]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["to sidecar", "to gateway"])
def test_a_side_that_does_not_read_pushes_back_and_loses_nothing(
    ends: list[socket.socket], order: list[int]
) -> None:
    writer, reader = (ends[number] for number in order)
    sent = bytearray()
    poll = select.poll()
    poll.register(writer, select.POLLOUT)
    while poll.poll(200):
        piece = random.Random(len(sent)).randbytes(50_000)
        sent += piece[: writer.send(piece, socket.MSG_DONTWAIT)]
        assert len(sent) < 4_000_000, "nothing pushes back"
    reader.sendall(b"meanwhile")
    assert writer.recv(9) == b"meanwhile"
    received = bytearray()
    while len(received) < len(sent):
        received += reader.recv(65_536)
    assert received == sent


@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["sidecar", "gateway"])
def test_a_side_that_has_gone_is_gone_for_the_other_one(
    ends: list[socket.socket], order: list[int]
) -> None:
    stays, goes = (ends[number] for number in order)
    goes.sendall(b"last words")
    goes.close()
    with pytest.raises(BrokenPipeError):
        stays.sendall(bytes(4_000_000))
    assert stays.recv(100) == b"last words"


def test_a_killed_sidecar_ends_its_links_and_the_next_one_gets_new_ones(
    start: Start, record: Record
) -> None:
    sidecar = start()
    recording = record(sidecar)
    with liveness.connect_sync(recording.socket, name="gw-1") as gateway:
        gateway.connected()
        gateway.login("ada", conn=1)
        gateway.flush()
        sidecar.kill()
        assert recording.line_with(link=1, event="eof")["from"] == "sidecar"
        refused = recording.connect()
        assert refused.receive() is None
        assert "no sidecar" in recording.report()
        gateway.login("bob", conn=2)
        sidecar.start()
        gateway.flush()
    assert [record[1:4] for record in decided(sidecar)[:2]] == [
        ("ada", "gw-1", 1),
        ("bob", "gw-1", 2),
    ]
    refusals = [line for line in recording.stop() if line.get("why") != "stopped"]
    assert "no sidecar" in next(line["why"] for line in refusals if "why" in line)


def test_the_recording_ends_at_its_size_and_links_go_on(
    sidecar: Sidecar, record: Record, name: str
) -> None:
    recording = record(sidecar, "--max-bytes", "2000")
    gateway = recording.gateway(name)
    for _ in range(15):
        gateway.sync()
    assert "(--max-bytes); the recording ends here" in recording.report()
    gateway.sync()
    lines = recording.stop()
    assert "--max-bytes" in lines[-1]["why"]
    assert recording.file.stat().st_size <= 2_000


def test_a_full_disk_disturbs_no_link(
    sidecar: Sidecar, record: Record, name: str
) -> None:
    recording = record(sidecar, out="/dev/full")
    gateway = recording.gateway(name)
    assert "it cannot be written (No space left on device)" in recording.report()
    gateway.sync()


# --- and the replay -------------------------------------------------------------------


def a_day(sidecar: Sidecar, recording: Recording) -> None:
    """Users come, move, speak and leave, over several links."""
    first = recording.gateway("gw-1", fresh=True)
    second = recording.gateway("gw-2", fresh=True, clock=[1.0, 2.0])
    first.send("login", ["ada", 7, BIG], {"conn": [1, BIG, None], "age": 2.5})
    first.sync()
    second.send("login", "ada", {"conn": 5, "began": 0.5})
    second.sync()
    first.take(1)
    first.send("ack", first.next + 3)
    first.send("keepalive", [7, "stray"], {"conn": [BIG, 3]})
    frame = packed(["logout", 7, {"conn": BIG}])
    first.send_bytes(frame[:9])
    if not recording.is_raw:  # else pieces are not looked into while they are recorded
        recording.line_with(hex=frame[:9].hex())
    first.send_bytes(frame[9:])
    first.send("login", ["bob"], {"conn": ["x"]})
    assert first.refusal()["code"] == "bad-option"
    first.sync()
    first.close()
    # Else the gateway would replace itself, which is one error more.
    sidecar.metric_until(lambda links: links == 1, "liveness_links", role="gateway")
    again = recording.gateway("gw-1", after=first.next + 3, log=first.log)
    again.send("login", "int:7", {"conn": 9})
    again.sync()
    second.send("logout", "ada", {"conn": 5})
    second.sync()


@pytest.mark.parametrize("flags", [["--raw"], []], ids=["raw", "frames"])
def test_a_replay_into_a_fresh_sidecar_makes_the_same_records(
    start: Start, record: Record, flags: list[str]
) -> None:
    recorded, fresh = start(), start()
    recording = record(recorded, *flags)
    a_day(recorded, recording)
    recording.stop()
    found = totals(replayed(recording.file, fresh, "--speed", "0", "--in-order"))
    assert decided(fresh) == decided(recorded)
    assert len(decided(fresh)) == 8
    assert (found["links"], found["unsent"], found["new_errors"]) == (3, 0, [])
    assert (found["errors"], found["recorded_errors"]) == (1, 1)


def traffic(folder: Path, *lines: dict[str, Any] | str) -> Path:
    """A file with these lines."""
    file = folder / "hand-made.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


def said(at: float, link: int, *frame: Any) -> dict[str, Any]:
    return {"t": at, "link": link, "from": "gateway", "frame": [*frame]}


def test_at_100x_frames_keep_their_order_and_timeouts_are_the_sidecars(
    start: Start, tmp_path: Path
) -> None:
    fresh = start(1)
    file = traffic(
        tmp_path,
        said(1_000, 1, "hello", {"protocol": 1, "name": "gw-1", "clock": [50, 9_000]}),
        said(1_001, 1, "login", ["ada", "bob"], {"conn": [1, 2], "began": [20, 51]}),
        said(1_010, 2, "hello", {"protocol": 1, "name": "gw-2", "clock": [60, 9_010]}),
        # Of an older connection than that of the session, which only `began` can tell.
        said(1_020, 2, "login", "bob", {"conn": 1, "began": 50.5}),
        said(1_030, 2, "login", "ada", {"conn": 2, "began": 60}),
        said(1_040, 1, "ack", 99),
        said(1_090, 2, "logout", "ada", {"conn": 2}),
    )
    done = replayed(file, fresh, "--speed", "100", "--stay", "1", "--watch")
    *answers, summary = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, summary["new_errors"]) == (0, [])
    assert decided(fresh) == [
        ("online", "ada", "gw-1", 1, "login"),
        ("online", "bob", "gw-1", 2, "login"),
        ("moved", "bob", "gw-1", 2, "login"),
        ("moved", "ada", "gw-2", 2, "login"),
        ("offline", "ada", "gw-2", 2, "logout"),
        ("offline", "bob", "gw-1", 2, "silence"),
    ]
    # What the recorded gateway acknowledged is acknowledged when it comes.
    assert summary["own"]["ack"] >= 1
    shown = [line["frame"][0] for line in answers if line["link"] == 1]
    assert sorted(set(shown)) == ["notices", "pong", "welcome"]


def test_a_new_refusal_fails_a_replay_and_one_of_the_recording_does_not(
    sidecar: Sidecar, tmp_path: Path, name: str
) -> None:
    refused = {"code": "bad-option", "message": "…", "fatal": False, "n": 2}
    file = traffic(
        tmp_path,
        said(0, 1, "hello", {"protocol": 1, "name": name}),
        said(0, 1, "login", "x", {"conn": "no conn"}),
        {"t": 0, "link": 1, "from": "sidecar", "frame": ["error", refused]},
        said(0, 1, "nonsense"),
        '{"t": 0, "link": 1, "from": "gate',
    )
    file.write_text(file.read_text().rstrip("\n"))
    done = replayed(file, sidecar, "--speed", "0")
    assert done.returncode == 1
    assert "its last line is incomplete, and left out" in done.stderr
    (new,) = json.loads(done.stdout)["new_errors"]
    assert (new["link"], new["code"], new["count"]) == (1, "unknown-frame", 1)


def test_frames_of_msgpack_are_one_link(
    sidecar: Sidecar, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "frames"
    hello = ["hello", {"protocol": 1, "name": name}]
    file.write_bytes(packed(hello, ["login", name], ["where", [name]], ["ack", 9**9]))
    found = totals(replayed(file, sidecar))
    assert found["received"] == {"welcome": 1, "where": 1, "pong": 1}
    assert (found["frames"], found["changed"]) == (4, {"ack": 1})

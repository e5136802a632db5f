"""`compare` beside a real sidecar: lines through a real pipe, and a file of the past."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from liveness.cli.main import main
from liveness.lab.compare import live_comparison
from liveness.lab.compare.comparison_report import AGREE, DIFFER
from tests.helpers.tree import ROOT
from tests.system.conftest import Start
from tests.system.sidecar import READY_S, SOON_S, Sidecar, eventually

WITHIN_S = 0.2
Shown = list[dict[str, Any]]


class Shadow:
    """A comparison that runs, and the pipe of a detector to it."""

    def __init__(self, process: "subprocess.Popen[str]", told: Path) -> None:
        self.process = process
        self._told = told

    def says(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def offline(self, uid: str | int, at: float) -> None:
        self.says(json.dumps({"uid": uid, "at": at, "detector": "theirs"}))

    def told(self) -> list[str]:
        """Its lines on stderr."""
        return self._told.read_text().splitlines()

    def hangs_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def ends(self) -> tuple[int, Shown, dict[str, Any]]:
        """Its exit code, lines and account, once the lines end or it was asked to."""
        code = self.process.wait(SOON_S)
        assert self.process.stdout is not None
        shown = self.process.stdout.read()
        *lines, account = [json.loads(line) for line in shown.splitlines()]
        return code, lines, account["account"]


@contextmanager
def beside(sidecar: Sidecar, *arguments: str) -> Iterator[Shadow]:
    """A comparison that was welcomed."""
    command = [sys.executable, "-m", "liveness", "compare", "-", "--json", "--all"]
    command += [f"--within={WITHIN_S}", f"--socket={sidecar.socket}", *arguments]
    with (
        (sidecar.folder / "told").open("w") as told,
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
        ) as process,
    ):
        try:
            shadow = Shadow(process, sidecar.folder / "told")
            eventually(
                lambda: any("watching" in line for line in shadow.told()),
                lambda: str(shadow.told()),
                within_s=READY_S,
            )
            yield shadow
        finally:
            process.kill()


def now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


def wait_ms(milliseconds: float) -> None:
    """Until the clock that both sides are stamped by has gone on so far."""
    until = now_ms() + milliseconds
    eventually(lambda: now_ms() >= until)


EDGE_MS = 1000 * WITHIN_S + 100


def offlines(sidecar: Sidecar) -> dict[str | int, int]:
    return {one.uid: one.at for one in sidecar.log() if one.kind == "offline"}


def test_a_detector_that_runs_is_compared_line_by_line(start: Start) -> None:
    sidecar = start(1, flush_s=0.1)
    gateway = sidecar.gateway("gw-1")
    with beside(sidecar) as shadow:
        gateway.send("login", ["ada", "bob", 7], {"conn": [1, 2, 3]})
        gateway.apply("login", ["liz", "out"], {"conn": [4, 5], "timeout": 3_600})
        eventually(lambda: len(offlines(sidecar)) == 3)
        at = offlines(sidecar)
        shadow.offline("ada", at["ada"] + 50)
        shadow.offline(7, (at[7] - 20) / 1000)
        shadow.offline("liz", now_ms())
        shadow.offline("nobody", now_ms())
        shadow.says("nonsense")
        gateway.send("logout", "out", {"conn": 5})
        wait_ms(2)
        gateway.apply("message", "liz", {"conn": 4})
        wait_ms(EDGE_MS)  # or what is offline on one side alone is not judged
        shadow.hangs_up()
        code, lines, account = shadow.ends()
        told = shadow.told()
    assert code == DIFFER
    by_uid = {line["uid"]: line for line in lines}
    assert {uid: line["verdict"] for uid, line in by_uid.items()} == {
        "ada": "both", 7: "both", "bob": "only here", "out": "logout",
        "liz": "only there", "nobody": "only there",
    }  # fmt: skip
    assert (by_uid["ada"]["later_s"], by_uid[7]["later_s"]) == (0.05, -0.02)
    assert by_uid["bob"]["here"]["reason"] == "silence"
    assert (by_uid["liz"]["why"], by_uid["nobody"]["why"]) == ("alive", "unknown")
    assert account["later_there_s"] == {
        "min": -0.02,
        "p50": -0.02,
        "p99": 0.05,
        "max": 0.05,
    }
    assert (account["both"], account["only_here"], account["only_there"]) == (2, 1, 2)
    assert (account["lines"], account["bad_lines"], account["late"]) == (5, 1, 0)
    assert told[-1].startswith("liveness: line 5 is left out: it is not a JSON object")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_the_sidecar_is_away_what_it_will_tell_is_not_missed_here(
    start: Start, number: int
) -> None:
    sidecar = start(1, flush_s=0.1)
    place = sidecar.socket
    with beside(sidecar) as shadow:
        sidecar.stop()
        sidecar.socket = place.with_name("elsewhere")
        gateway = sidecar.start().gateway("gw-1")
        gateway.apply("login", "ada", {"conn": 1})
        eventually(lambda: "ada" in offlines(sidecar))
        shadow.offline("ada", offlines(sidecar)["ada"])
        wait_ms(1000 * (2 * WITHIN_S + 2 * live_comparison.SETTLE_EVERY_S))
        place.symlink_to(sidecar.socket)
        eventually(lambda: any("connected again" in line for line in shadow.told()))
        assert shadow.process.stdout is not None
        # Settled, and so shown, before the end.
        assert json.loads(shadow.process.stdout.readline())["later_s"] == 0.0
        shadow.process.send_signal(number)
        code, lines, account = shadow.ends()
    assert (code, lines) == (AGREE, [])
    assert (account["both"], account["only_there"], account["late"]) == (1, 0, 0)


def test_what_was_compared_is_told_when_the_sidecar_ends_the_watch(
    start: Start,
) -> None:
    sidecar = start(1, flush_s=0.1)
    with beside(sidecar) as shadow:
        shadow.says("nonsense")
        eventually(lambda: any("left out" in line for line in shadow.told()))
        sidecar.stop()
        # Another program serves there by now.
        with served(sidecar.socket, b"220 mail.example ESMTP\r\n"):
            code, lines, account = shadow.ends()
        assert (code, lines, account["bad_lines"]) == (1, [], 1)
        assert "is not a liveness sidecar" in shadow.told()[-1]


def test_a_stdin_that_cannot_be_read_ends_the_comparison(
    sidecar: Sidecar,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Path(os.devnull).open("w") as only_written:
        monkeypatch.setattr(live_comparison, "STDIN", only_written.fileno())
        assert main(["compare", "-", f"--socket={sidecar.socket}"]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("both          0\n")
    assert shown.err.splitlines()[1:] == [
        "liveness: stdin cannot be read (Bad file descriptor); give it lines"
    ]


@contextmanager
def served(path: Path, answer: bytes) -> Iterator[None]:
    """A socket of another program, which sends *answer* to each client."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with suppress(OSError):  # shut at the end
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()

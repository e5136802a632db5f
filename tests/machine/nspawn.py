"""A Debian with systemd as its first process, in a container of systemd-nspawn.

It has processes, mounts and a network of its own: only loopback, so nothing is fetched.
Commands are run in it from here, and its files are reached from here.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.helpers.needs import require
from tests.helpers.processes import Done, ran
from tests.machine.bases import unpacked

# Neither registered with, nor put into a unit by, a systemd of this host: it has perhaps
# none.
SPAWN: Final = ("--quiet", "--register=no", "--keep-unit", "--private-network")
BOOT_S: Final = 60.0
STOP_S: Final = 30.0
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Machine:
    """A machine that runs.

    Args:
        pid: Its first process, by the number that it has here.
    """

    def __init__(self, pid: int) -> None:
        self._enter = [
            "nsenter",
            f"--target={pid}",
            "--all",
            "env",
            "-i",
            f"PATH={PATH}",
        ]
        self._root = Path(f"/proc/{pid}/root")

    def path(self, path: str) -> Path:
        """Our path of the machine's file *path*."""
        return self._root / path.lstrip("/")

    def run(self, *command: str, check: bool = True) -> Done:
        """Run a command as root, with no environment but a search path."""
        done = ran(*self._enter, *command)
        assert not (check and done.returncode), f"{command}\n{done.stdout}{done.stderr}"
        return done

    def until(self, condition: str, within_s: float) -> None:
        """Wait until a shell's command succeeds there; fail if it does not in time."""
        loop = f"until {condition}; do sleep 0.1; done"
        self.run("timeout", str(within_s), "sh", "-c", loop)

    def says(self, *command: str) -> str:
        """The output of a command, without its last newline."""
        return self.run(*command).stdout.removesuffix("\n")


@contextmanager
def booted(base: Path, *, read_only: dict[str, Path]) -> Iterator[int]:
    """A machine that has started: the number that its first process has here.

    Args:
        base: Its files, in a tar file.
        read_only: Folders of this host, by the place that they have there.
    """
    with unpacked(base) as root, TemporaryDirectory() as scratch:
        (root / "etc/machine-id").write_text("")  # it is another machine each time
        notify, console = Path(scratch, "notify"), Path(scratch, "console")
        command = [
            *(require("systemd-nspawn", "systemd-container"), "--boot", *SPAWN),
            *("--notify-ready=yes", "--console=pipe", f"--directory={root}"),
            *(f"--bind-ro={here}:{there}" for there, here in read_only.items()),
        ]
        with console.open("wb") as output, _bound(notify) as notified:
            nspawn = subprocess.Popen(
                command,
                env={"PATH": PATH, "NOTIFY_SOCKET": str(notify)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                pid = _first_process(notified, console)
                # Left open and unread, it would fill and block the machine's systemd.
                notified.close()
                yield pid
            finally:
                _shut_down(nspawn)


def _bound(path: Path) -> socket.socket:
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(str(path))
    notified.settimeout(BOOT_S)
    return notified


def _first_process(notified: socket.socket, console: Path) -> int:
    """The machine's first process, from what systemd-nspawn notifies, once it is ready."""
    fields = dict[str, str]()
    try:
        while fields.get("READY") != "1":
            for line in notified.recv(4096).decode().splitlines():
                name, _, fields[name] = line.partition("=")
    except TimeoutError:
        output = console.read_text(errors="replace")
        raise AssertionError(
            f"no machine is ready after {BOOT_S} s\n{output}"
        ) from None
    return int(fields["X_NSPAWN_LEADER_PID"])


def _shut_down(nspawn: "subprocess.Popen[bytes]") -> None:
    children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children").read_text()
    nspawn.terminate()
    try:
        nspawn.wait(STOP_S)
    except subprocess.TimeoutExpired:
        for child in children.split():  # the machine; it would outlast systemd-nspawn
            os.kill(int(child), signal.SIGKILL)
        nspawn.wait(STOP_S)

"""Systems that speak the wire protocol: the sidecar, and a server on asyncio's timers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from liveness.lab.bench.program import PYTHON, Program
from liveness.lab.bench.sidecar_process import AS_INSTALLED, SidecarProcess
from liveness.lab.bench.systems import LOGINS_AT_ONCE, LONG_S, Stream, System
from liveness.lab.common.load import BATCH, LoadGateway, LoadUsers, Notices, cut


@dataclass(eq=False)
class GatewaySystem(System):
    """One of these servers, and a gateway with its users."""

    gateway: LoadGateway
    users: LoadUsers

    def log_in(self, numbers: range) -> None:
        """Log users in; return once that is on disk."""
        for part in cut(numbers, LOGINS_AT_ONCE):
            self.gateway.send(self.users.logins(part, timeout=LONG_S))
        self.gateway.ping()

    def singles(self, numbers: Sequence[int]) -> Stream:
        """One-uid frames."""
        return Stream(b"".join(map(self.users.single, numbers)), 0)

    def batches(self, numbers: Sequence[int]) -> Stream:
        """Frames of 1,000 uids."""
        starts = range(0, len(numbers), BATCH)
        frames = (self.users.batch(numbers[at : at + BATCH]) for at in starts)
        return Stream(b"".join(frames), 0)

    def write(self, stream: Stream) -> None:
        """Write frames; return once they are applied."""
        for piece in stream.pieces():
            self.gateway.send(piece)
        self.gateway.ping()

    def fall_silent(self, number: int, timeout_s: int) -> None:
        """Log a user in who then sends nothing more."""
        self.gateway.send(self.users.single(number, "login", timeout=timeout_s))

    def wait_for_offlines(self, count: int, *, until: float) -> Sequence[Notices]:
        """As in `System`."""
        self.gateway.wait_for(count, until=until)
        return self.gateway.notices


class AsyncioTimers(Program):
    """The process of `asyncio_timers.py`; its socket and output are in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "timers.sock"
        command = [*PYTHON, "liveness.lab.bench.asyncio_timers", str(self.socket)]
        super().__init__(folder, command)

    def is_ready(self) -> bool:
        """Whether it welcomes a gateway."""
        try:
            with LoadGateway(self.socket):
                return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False


def sidecar(folder: Path, *, env: Mapping[str, str] = AS_INSTALLED) -> SidecarProcess:
    """A sidecar with slots of a second, so that each activity really moves its user."""
    return SidecarProcess(folder, timeout_s=LONG_S, slots=LONG_S, env=env)


@contextmanager
def measured(
    start: Callable[[Path], SidecarProcess | AsyncioTimers], folder: Path, count: int
) -> Iterator[GatewaySystem]:
    """A running server, and a gateway with *count* users."""
    users = LoadUsers(count)
    with start(folder) as server:
        server.start()
        with LoadGateway(server.socket) as gateway:
            yield GatewaySystem(server, gateway, users)

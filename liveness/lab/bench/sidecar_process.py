"""The sidecar under test, as a process in a temporary folder."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from liveness.console.admin_client import CommandError, readiness
from liveness.lab.bench.program import PYTHON, Program, temporary_folder
from liveness.lab.common.load import LoadGateway

SOCKET: Final = "gateway.sock"
AS_INSTALLED: Final[Mapping[str, str]] = MappingProxyType({})
# Scenarios have up to ten million users, and a few more.
MANY_USERS: Final = {
    "LIVENESS_LIMITS_MAX_USERS": "11000000",
    "LIVENESS_LIMITS_MAX_GATEWAY_USERS": "11000000",
    "LIVENESS_LIMITS_MAX_SPOOL_BYTES": str(2**30),  # one list of all of them
}


class SidecarProcess(Program):
    """One sidecar, with its socket, state and output in a folder.

    Its settings file has the text *settings*. It inherits the socket *listener*, or makes
    its own.
    """

    def __init__(
        self,
        folder: Path,
        *,
        timeout_s: float,
        slots: int | None = None,
        env: Mapping[str, str] = AS_INSTALLED,
        settings: str = "",
    ) -> None:
        self.socket = folder / SOCKET
        self.state = folder / "state"
        # Without a text, the defaults hold instead of the settings of this machine.
        file = folder / "settings.toml"
        file.write_text(settings, encoding="utf-8")
        command = [*PYTHON, "liveness", "serve", "--config", str(file)]
        command += ["--socket", str(self.socket), "--http", "127.0.0.1:0"]
        command += ["--state", str(self.state), "--timeout", str(timeout_s)]
        if slots is not None:
            command += ["--slots", str(slots)]
        super().__init__(folder, command, env={**MANY_USERS, **env})

    def is_ready(self) -> bool:
        """Whether hello and `/readyz` succeed."""
        try:
            with LoadGateway(self.socket, role="watcher", name="ready?", ack=False):
                pass
            return readiness(self.socket)[0]
        except (FileNotFoundError, ConnectionRefusedError, CommandError):
            return False


@contextmanager
def fresh_sidecar(
    folder: Path | None,
    *,
    timeout_s: float,
    env: Mapping[str, str] = AS_INSTALLED,
    settings: str = "",
) -> Iterator[SidecarProcess]:
    """A sidecar that is not started yet; it and its files are removed at the end."""
    with (
        temporary_folder(folder) as own,
        SidecarProcess(own, timeout_s=timeout_s, env=env, settings=settings) as sidecar,
    ):
        yield sidecar


@contextmanager
def linked_sidecar(
    folder: Path | None,
    *,
    timeout_s: float,
    env: Mapping[str, str] = AS_INSTALLED,
    settings: str = "",
) -> Iterator[tuple[SidecarProcess, LoadGateway]]:
    """A sidecar that runs, and a link to it; raises if it ended by itself."""
    with fresh_sidecar(
        folder, timeout_s=timeout_s, env=env, settings=settings
    ) as sidecar:
        sidecar.start()
        with LoadGateway(sidecar.socket) as gateway:
            yield sidecar, gateway
        sidecar.check()

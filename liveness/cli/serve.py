"""`liveness serve`: runs the sidecar until a signal."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from liveness.cli.options import ConfigFile, Socket, State, declared, setting_flag
from liveness.config.settings import Config
from liveness.config.sources import load
from liveness.service.common import logs

command: Final = declared("serve", "serve --timeout 10 --slots 100")


@command.default
def serve(
    *,
    socket: Socket = None,
    http: Annotated[str | None, setting_flag("--http", "HOST:PORT")] = None,
    state: State = None,
    timeout: Annotated[str | None, setting_flag("--timeout", "SECONDS")] = None,
    slots: Annotated[str | None, setting_flag("--slots", "N")] = None,
    config: ConfigFile = None,
) -> int:
    """Run the sidecar until SIGTERM or Ctrl-C.

    All other settings are in the file and the environment: see check-config. Without a
    terminal, SIGHUP makes the sidecar read them again. Where its log is JSON, an error that
    ends it is a line of the log.
    """
    flags = {"--socket": socket, "--http": http, "--state": state}
    flags |= {"--timeout": timeout, "--slots": slots}
    file = None if config is None else Path(config)

    def read_again() -> Config:
        return load(flags, file=file, is_reload=True)

    _run(load(flags, file=file), read_again)
    return 0


def _run(settings: Config, read_again: Callable[[], Config]) -> None:
    # Imported only now: a wrong setting is reported without waiting for the server.
    import faulthandler

    import trio

    from liveness.service import app as service

    logs.configure("auto", settings.logging.level)
    # systemd's watchdog ends a hung sidecar by SIGABRT: print where each thread was.
    faulthandler.enable()
    try:
        service.log_start(settings)
        trio.run(service.serve, settings, read_again)
    finally:
        logs.drain()  # an error is printed after all log lines

"""`liveness serve`: runs the sidecar until a signal."""

from pathlib import Path
from typing import Annotated, Final

from liveness.cli.options import ConfigFile, Socket, State, declared, setting_flag
from liveness.config.settings import Config
from liveness.config.sources import Loaded, load

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
) -> None:
    """Run the sidecar until SIGTERM or Ctrl-C.

    All other settings are in the file and the environment: see check-config. Without a
    terminal, SIGHUP makes the sidecar read them again.
    """
    flags = {"--socket": socket, "--http": http, "--state": state}
    flags |= {"--timeout": timeout, "--slots": slots}
    file = None if config is None else Path(config)

    def read_again() -> Config:
        again = load(flags, file=file, is_reload=True)
        _warn_of_ignored(again)
        return again.config

    loaded = load(flags, file=file)
    settings = loaded.config

    # Imported only now: a wrong setting is reported without waiting for the server.
    import faulthandler

    import trio

    from liveness.config.paths import make_socket_folder
    from liveness.service import app as service
    from liveness.service.common import logs

    logs.configure(settings.logging.format, settings.logging.level)
    _warn_of_ignored(loaded)
    # systemd's watchdog ends a hung sidecar by SIGABRT: print where each thread was.
    faulthandler.enable()
    try:
        make_socket_folder(settings.socket.path)
        trio.run(service.serve, settings, read_again)
    finally:
        logs.drain()  # an error is printed after all log lines


def _warn_of_ignored(loaded: Loaded) -> None:
    import structlog

    for text in loaded.ignored:
        structlog.get_logger("settings").warning("a setting is ignored", detail=text)

"""`liveness serve`: runs the sidecar until a signal."""

from typing import Annotated, Final

from cyclopts import App

from liveness.cli.options import ConfigFile, Socket, State, path_of, setting_flag
from liveness.config.settings import Config
from liveness.config.sources import Loaded, load

command: Final = App(
    name="serve",
    help_epilogue="Example: liveness serve --timeout 10 --slots 100",
    version_flags=[],
)


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

    Every other setting is in the file and the environment: see check-config. Without a
    terminal SIGHUP has them read anew.
    """
    flags = {"--socket": socket, "--http": http, "--state": state}
    flags |= {"--timeout": timeout, "--slots": slots}

    def read_again() -> Config:
        again = load(flags, file=path_of(config), is_reload=True)
        _warn_of_ignored(again)
        return again.config

    loaded = load(flags, file=path_of(config))
    settings = loaded.config

    import faulthandler

    import trio

    from liveness.config.paths import make_socket_folder
    from liveness.service import app as service
    from liveness.service.common import logs

    logs.configure(settings.logging.format, settings.logging.level)
    _warn_of_ignored(loaded)
    # A watchdog ends us by SIGABRT: then it is told where we stood.
    faulthandler.enable()
    try:
        make_socket_folder(settings.socket.path)
        trio.run(service.serve, settings, read_again)
    finally:
        logs.drain()  # what is told of a mistake comes behind its lines


def _warn_of_ignored(loaded: Loaded) -> None:
    import structlog

    for text in loaded.ignored:
        structlog.get_logger("settings").warning("a setting is ignored", detail=text)

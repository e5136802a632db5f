"""The command line: arguments in, exit code out.

A command imports what it needs when it runs, so that `version` does not wait for an
HTTP server. A person's mistake is one line on stderr that says what, where and what to
do; a traceback is a fault of ours.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import (
    App,
    CycloptsError,
    Parameter,
    UnknownCommandError,
    UnusedCliTokensError,
)

from liveness import __version__
from liveness.arguments import (
    EITHER,
    UID_FORMS,
    ConfigFile,
    GatewayName,
    Json,
    Key,
    Kinds,
    Role,
    Socket,
    State,
    UserName,
    as_written,
    ext_of,
    file_at,
    folder_at,
    lines_at,
    moment_flag,
    name_of,
    number,
    seconds_of,
    setting_flag,
    sized,
    sizes_of,
    user_of,
    writable,
)
from liveness.bench import FULL, OTHERS, QUICK, SCENARIOS, full
from liveness.config import Config
from liveness.core.records import GATEWAY, KINDS
from liveness.core.timers import STATES
from liveness.errors import ConfigError, LivenessError
from liveness.sources import load, socket_path, state_folder
from liveness.streams import AUTO, COLORS, Output, OutputError, open_closed, tell

USAGE: Final = 2
INTERRUPTED: Final = 130  # as a shell reports SIGINT
BACKGROUND: Final = 10  # how nice a command is that nobody should notice
NO_READER: Final = 141  # as a shell reports SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the console's entry point.

    Args:
        arguments: Without the program's name; None: those of the process.
    Returns:
        0, or 2 for a wrong command line, 78 for wrong settings, 130 after Ctrl-C, 141
        when nobody reads the output any more, 1 for any other failure.
    """
    open_closed()
    try:
        with redirect_stdout(Output(sys.stdout)) as output:
            code: int | None = app(sys.argv[1:] if arguments is None else arguments)
            output.flush()  # here, where its failure can still be told
        return code or 0
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        mistakes = [_mistake(cause) for cause in _causes(error)]
        if None in mistakes:
            raise
        code, line = mistakes[0] or (1, "")
        if line:
            tell(line)
        return code


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions within the groups that trio's nurseries raise; else the one."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error


def _mistake(error: BaseException) -> tuple[int, str] | None:
    """Exit code and line for what a person did; None for a fault of ours."""
    match error:
        case UnusedCliTokensError():
            unused = " ".join(error.unused_tokens or ())
            return _usage(error, f"there is no argument here: {unused}")
        case UnknownCommandError():  # its list of commands ends after the eighth
            line, _, _ = str(error).partition(" Available commands:")
            return _usage(error, line.rstrip("."))
        case CycloptsError():
            return _usage(error, str(error).rstrip("."))
        case ConfigError():
            return os.EX_CONFIG, str(error)
        case OutputError(__cause__=BrokenPipeError()):
            return NO_READER, ""
        case LivenessError():
            return 1, str(error)
        case KeyboardInterrupt():
            return INTERRUPTED, ""
        case _:
            return None


def _usage(error: CycloptsError, line: str) -> tuple[int, str]:
    command = " ".join(["liveness", *(error.command_chain or ())])
    return USAGE, f"{line}; see `{command} --help`"


app: Final = App(
    name="liveness",
    help="Tells TCP gateways which of their users have fallen silent.",
    help_epilogue="Example: liveness serve --timeout 30",
    version_flags=[],  # there is a command for it
    default_parameter=Parameter(negative=(), show_default=False),
    exit_on_error=False,
    print_error=False,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


@app.command(help_epilogue="Example: liveness serve --timeout 10 --slots 100")
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

    def read(*, is_reload: bool = False) -> Config:
        return load(flags, file=_path(config), is_reload=is_reload).config

    settings = read()

    import faulthandler

    import trio

    from liveness.places import make_socket_folder
    from liveness.service import app as service
    from liveness.service import logs

    logs.configure(settings.logging.format, settings.logging.level)
    # A watchdog ends us by SIGABRT: then it is told where we stood.
    faulthandler.enable()
    try:
        make_socket_folder(settings.socket.path)
        trio.run(service.serve, settings, partial(read, is_reload=True))
    finally:
        logs.drain()  # what is told of a mistake comes behind its lines


@app.command(help_epilogue="Example: liveness watch --kind offline --json")
def watch(
    *,
    socket: Socket = None,
    after: Annotated[
        int | None,
        number(
            int, "SEQ", "show the records above SEQ (default: new ones)", 0, 2**63 - 1
        ),
    ] = None,
    kind: Kinds = None,
    json: Json = False,
    count: Annotated[
        int | None, number(int, "N", "end after N records", 1, 2**63 - 1)
    ] = None,
    color: Annotated[
        str,
        Parameter(
            help="when lines are coloured: auto (as if not given) is on a terminal, "
            "unless NO_COLOR is set",
            choices=COLORS,
            metavar="WHEN",
        ),
    ] = AUTO,
) -> None:
    """Show each record as it is written, over restarts of the sidecar, without a gap."""
    path = socket_path(socket)

    import trio

    from liveness.commands.watch import watch

    trio.run(
        partial(
            watch,
            path,
            after=after,
            kinds=kind or (),
            as_json=json,
            count=count,
            out=sys.stdout,
            tell=tell,
            color=color,
        )
    )


@app.command(help_epilogue="Example: liveness status --quiet || echo not ready")
def status(
    *,
    socket: Socket = None,
    json: Json = False,
    quiet: Annotated[
        bool,
        Parameter(help="print nothing: the exit code tells", group=EITHER),
    ] = False,
    watch: Annotated[
        list[float] | None,
        Parameter(
            help="show it again every so many seconds (2 if none are given), with what "
            "happens per second, until Ctrl-C",
            metavar="[SECONDS]",
            consume_multiple=(0, 1),
            allow_repeating=False,
            converter=seconds_of,
            group=EITHER,
        ),
    ] = None,
) -> int:
    """Show how the sidecar is; the exit code is 0 if it is ready, else 1."""
    path = socket_path(socket)
    if watch is not None:
        import trio

        from liveness.commands.statuswatch import watch_status

        (every_s,) = watch or [2.0]
        trio.run(
            partial(
                watch_status,
                path,
                every_s=every_s,
                as_json=json,
                out=sys.stdout,
                tell=tell,
            )
        )

    from liveness.commands import CommandError
    from liveness.commands.status import readiness, status

    if not quiet:
        return 0 if status(path, as_json=json, out=sys.stdout) else 1
    try:
        return 0 if readiness(path)[0] else 1
    except CommandError:
        return 1


@app.command(help_epilogue="Example: liveness explain ada")
def explain(
    uid: UserName,
    /,
    *,
    socket: Socket = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Tell in one sentence why a user is online, or offline; with --json all of it.

    Where no sidecar runs it is told from the log in the state directory.
    """
    path, folder = socket_path(socket), state_folder(state)

    from liveness.commands.explain import explain

    explain(path, folder, uid, as_json=json, out=sys.stdout, tell=tell)


@app.command(help_epilogue="Example: liveness history ada --limit 10")
def history(
    uid: UserName,
    /,
    *,
    state: State = None,
    limit: Annotated[
        int, number(int, "N", "at most the newest N (default 100)", 1, 100_000)
    ] = 100,
    json: Json = False,
) -> None:
    """Show a user's records, the newest last; a sidecar need not run."""
    folder = state_folder(state)

    from liveness.commands.log import history

    history(folder, uid, limit=limit, as_json=json, out=sys.stdout, tell=tell)


@app.command(help_epilogue="Example: liveness log --since 15min --kind offline --csv")
def log(
    *,
    state: State = None,
    since: Annotated[int | None, moment_flag("from then on")] = None,
    until: Annotated[int | None, moment_flag("before then")] = None,
    kind: Kinds = None,
    gateway: GatewayName = None,
    uid: Annotated[
        str | int | None,
        Parameter(
            help=f"only of this user ({UID_FORMS})",
            metavar="UID",
            converter=user_of,
            n_tokens=1,
        ),
    ] = None,
    json: Json = False,
    csv: Annotated[
        bool, Parameter(help="CSV, a column for each key that a record may have")
    ] = False,
) -> None:
    """Show what the log has, the oldest first; a sidecar need not run."""
    if json and csv:
        told = "--json and --csv are two forms: choose one"
        raise CycloptsError(msg=told, command_chain=("log",))
    if since is not None and until is not None and since >= until:
        told = "--since is not before --until: nothing lies between"
        raise CycloptsError(msg=told, command_chain=("log",))
    folder = state_folder(state)

    from liveness.commands.log import log
    from liveness.service.logbook import Sought

    kinds = frozenset(kind or KINDS)
    sought = Sought(uid, kinds, gateway, since, until)
    form = "json" if json else "csv" if csv else "text"
    log(folder, sought, form=form, out=sys.stdout)


@app.command(help_epilogue="Example: liveness compare theirs.jsonl --within 30")
def compare(
    file: Annotated[
        str,
        Parameter(
            help='lines of JSON, as {"uid": "ada", "at": 1789000030004}; - is stdin, beside '
            "a sidecar that runs",
            metavar="FILE",
            converter=lines_at,
            allow_leading_hyphen=True,  # of "-"
        ),
    ],
    /,
    *,
    socket: Socket = None,
    state: State = None,
    within: Annotated[
        float,
        number(
            float,
            "S",
            "how far apart in time the two may call the same user offline (default 60)",
            0.1,
            3_600,
        ),
    ] = 60.0,
    all: Annotated[
        bool, Parameter(help="show those whom both called offline, too")
    ] = False,
    json: Json = False,
) -> int:
    """Compare whom another detector calls offline, and when, with what is decided here.

    A FILE is compared with the log in the state directory, lines on stdin with the records
    as they are written, until the lines end or Ctrl-C. The exit code is 0 if both called
    somebody offline, and neither anybody alone; 3 if not, or if a line was left out.
    """
    import trio

    from liveness.commands.compare import compare_file, compare_live
    from liveness.commands.comparereport import Options

    options = Options(within, all, json, sys.stdout, tell)
    if file != "-":
        return compare_file(Path(file), state_folder(state), options)
    code: int = trio.run(compare_live, socket_path(socket), options)
    return code


timers: Final = App(
    name="timers",
    help="List timers, show one, cancel it, or have it tried again.",
    help_epilogue="Example: liveness timers list --state failed",
    version_flags=[],
)
app.command(timers)


@timers.command(
    name="list",
    help_epilogue="Example: liveness timers list --gateway gw-1 --state pending",
)
def list_timers(
    *,
    socket: Socket = None,
    gateway: GatewayName = None,
    state: Annotated[
        str | None,
        Parameter(help="only in this state", choices=STATES, metavar="STATE"),
    ] = None,
    ext: Annotated[
        str | None,
        Parameter(
            help="only those that share this; found soonest with --state pending",
            metavar="EXT",
            converter=ext_of,
        ),
    ] = None,
    limit: Annotated[
        int, number(int, "N", "at most N (default 100)", 1, 2**63 - 1)
    ] = 100,
    json: Json = False,
) -> None:
    """List timers, the newest first; with --json one a line."""
    path = socket_path(socket)
    wanted = {"gateway": gateway, "state": state, "ext": ext}

    from liveness.commands.timers import list_timers

    list_timers(
        path,
        {name: value for name, value in wanted.items() if value is not None},
        limit=limit,
        as_json=json,
        out=sys.stdout,
        tell=tell,
    )


Damaged = Annotated[
    bool,
    Parameter(help="KEY is the number that `list` shows of a timer damaged on disk"),
]


@timers.command(name="show", help_epilogue="Example: liveness timers show order:17")
def show_timer(
    key: Key,
    /,
    *,
    socket: Socket = None,
    gateway: GatewayName = None,
    damaged: Damaged = False,
    json: Json = False,
) -> None:
    """Show all that is kept of the newest timer with a key."""
    path = socket_path(socket)

    from liveness.commands.timers import show_timer

    show_timer(path, key, gateway, damaged=damaged, as_json=json, out=sys.stdout)


@timers.command(
    name="cancel",
    help_epilogue="Example: liveness timers cancel order:17 --gateway gw-1",
)
def cancel_timer(
    key: Key,
    /,
    *,
    socket: Socket = None,
    gateway: GatewayName = None,
    damaged: Damaged = False,
) -> None:
    """Cancel a pending or fired timer, or one that is damaged on disk."""
    _change_timer("cancel", key, gateway, socket, damaged=damaged)


@timers.command(
    name="retry",
    help_epilogue="Example: liveness timers retry order:17 --gateway gw-1",
)
def retry_timer(
    key: Key, /, *, socket: Socket = None, gateway: GatewayName = None
) -> None:
    """Have a failed or pending timer tried now, from its first attempt on."""
    _change_timer("retry", key, gateway, socket)


def _change_timer(
    what: str,
    key: str,
    gateway: str | None,
    socket: str | None,
    *,
    damaged: bool = False,
) -> None:
    path = socket_path(socket)

    from liveness.commands.timers import change_timer

    change_timer(path, what, key, gateway, damaged=damaged, out=sys.stdout)


gateways: Final = App(
    name="gateways",
    help="List the names that are known, or have one forgotten.",
    help_epilogue="Example: liveness gateways list",
    version_flags=[],
)
app.command(gateways)


@gateways.command(
    name="list", help_epilogue="Example: liveness gateways list --role watcher"
)
def list_gateways(
    *, socket: Socket = None, role: Role = GATEWAY, json: Json = False
) -> None:
    """List who is connected, and who was within the retention; with --json one a line."""
    path = socket_path(socket)

    from liveness.commands.gateways import list_gateways

    list_gateways(path, role, as_json=json, out=sys.stdout)


@gateways.command(name="forget", help_epilogue="Example: liveness gateways forget gw-7")
def forget_gateway(
    name: Annotated[str, Parameter(help="the name", metavar="NAME", converter=name_of)],
    /,
    *,
    socket: Socket = None,
    role: Role = GATEWAY,
) -> None:
    """Give up a name that will not come back, and its place in the log."""
    path = socket_path(socket)

    from liveness.commands.gateways import forget_gateway

    forget_gateway(path, role, name, out=sys.stdout)


guard: Final = App(
    name="guard",
    help="Have a say in whom the storm guard holds; status shows who that is.",
    help_epilogue="Example: liveness guard release gw-1",
    version_flags=[],
)
app.command(guard)


@guard.command(name="release", help_epilogue="Example: liveness guard release gw-1")
def release_users(
    name: Annotated[
        str | None,
        Parameter(
            help="the gateway whose users are meant (default: those of all)",
            metavar="NAME",
            converter=name_of,
        ),
    ] = None,
    /,
    *,
    socket: Socket = None,
) -> None:
    """Have users judged now who are held because too many came due at once."""
    path = socket_path(socket)

    from liveness.commands.guard import release

    release(path, name, out=sys.stdout)


@app.command(help_epilogue="Example: liveness backup state.tar")
def backup(
    file: Annotated[
        str,
        Parameter(help="the tar archive to make", metavar="FILE", converter=file_at),
    ],
    /,
    *,
    state: State = None,
    force: Annotated[bool, Parameter(help="replace FILE if it is there")] = False,
    damaged: Annotated[
        bool,
        Parameter(help="also of a damaged log or timers, to a FILE that is not there"),
    ] = False,
) -> int:
    """Copy the whole state into one file, while the sidecar runs or is down.

    The exit code is 0 if all of it is whole, 3 if it was made with --damaged and is not.
    """
    folder = state_folder(state)
    os.nice(BACKGROUND)

    from liveness.commands.backup import backup

    return backup(folder, Path(file), force=force, damaged=damaged, out=sys.stdout)


@app.command(help_epilogue="Example: liveness demo --seconds 60 --users 500")
def demo(
    *,
    seconds: Annotated[
        float, number(float, "S", "how long it runs (default 40)", 1, 86_400)
    ] = 40.0,
    users: Annotated[
        int, number(int, "N", "simulated users (default 200)", 1, 10_000)
    ] = 200,
    timeout: Annotated[
        float, number(float, "S", "silence timeout (default 10)", 1, 86_400)
    ] = 10.0,
    script: Annotated[
        str,
        Parameter(
            help="what is made to happen, and when: SECONDS and silence [N], gateway, "
            "stop [S], restart or kill, as in '5 silence, 10 gateway'",
            metavar="STEPS",
            converter=as_written,
        ),
    ] = "",
) -> int:
    """Run a chat gateway, simulated users and a sidecar, and check what is decided.

    On a terminal it is a live picture with keys.
    """
    import trio

    from liveness.demo.run import run

    code: int = trio.run(
        partial(run, seconds=seconds, users=users, timeout=timeout, script=script)
    )
    return code


@app.command(help_epilogue="Example: liveness bench steady silence --users 50000")
def bench(
    *scenario: Annotated[
        str,
        Parameter(
            name="SCENARIO",
            help="\n\n".join(f"{name}: {what}" for name, what in SCENARIOS.items()),
            choices=tuple(SCENARIOS),
            show_choices=False,
        ),
    ],
    users: Annotated[
        int | None, number(int, "N", sized("users", "users"), 100, 10_000_000)
    ] = None,
    rate: Annotated[
        int | None,
        number(
            int,
            "N",
            sized("rate", "frames a second in steady; 33000 with more users"),
            1,
            100_000,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        number(
            float,
            "S",
            sized(
                "seconds",
                "how long everyone speaks in steady, and then users fall silent",
            ),
            1,
            86_400,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        number(
            float,
            "S",
            sized("timeout_s", "silence timeout of those who fall silent"),
            1,
            86_400,
        ),
    ] = None,
    sizes: Annotated[
        tuple[int, ...] | None,
        Parameter(
            help="users beside other systems, one number after "
            "the other (default: powers of ten and 4000000, up to four times --users)",
            metavar="N,N",
            converter=sizes_of,
            n_tokens=1,
        ),
    ] = None,
    without: Annotated[
        tuple[str, ...] | None,
        Parameter(
            help="another system to leave out; can be given again. "
            + "; ".join(f"{name}: {what}" for name, what in OTHERS.items()),
            metavar="NAME",
            choices=tuple(OTHERS),
            show_choices=False,
        ),
    ] = None,
    quick: Annotated[
        bool, Parameter(help="few users and short times: whether it works, not how")
    ] = False,
    folder: Annotated[
        Path | None,
        Parameter(
            help="where the sidecar has its files: the disk that is measured "
            "(default: the temporary folder)",
            metavar="DIR",
            converter=folder_at,
        ),
    ] = None,
    json: Annotated[
        str | None,
        Parameter(
            help="write a report there too; - is stdout, and the table is on stderr",
            metavar="FILE",
            converter=writable,
            allow_leading_hyphen=True,  # of "-"
        ),
    ] = None,
) -> int:
    """Measure what is promised on this machine, from a gateway's side.

    All scenarios unless some are named. Those beside other systems want these installed.
    The exit code is 0 if every floor was met, 1 if one was missed.
    """
    flags: dict[str, Any] = {"users": users, "rate": rate, "seconds": seconds}
    flags |= {"timeout_s": timeout, "folder": folder}
    flags |= {"sizes": sizes, "without": without}
    given = {name: value for name, value in flags.items() if value is not None}

    from liveness.bench.run import run

    options = replace(QUICK if quick else full(users or FULL.users), **given)
    return run(scenario or SCENARIOS, options, report=json)


@app.command(help_epilogue="Example: liveness check-config --config liveness.toml")
def check_config(*, config: ConfigFile = None) -> None:
    """Print the settings in effect and where each is from; start nothing."""
    import liveness.build  # noqa: F401  # refuses its variable, as in `serve`
    from liveness.commands.check_config import effective

    print(effective(load(file=_path(config))), end="")


@app.command(help_epilogue="Example: liveness check-state --state /var/lib/liveness")
def check_state(*, state: State = None, json: Json = False) -> int:
    """Read the whole state, and say what of it is damaged; a sidecar may run.

    The exit code is 0 if all of it is whole, 3 if not.
    """
    folder = state_folder(state)
    os.nice(BACKGROUND)

    from liveness.commands.checkstate import check_state

    return check_state(folder, as_json=json, out=sys.stdout)


@app.command(help_epilogue="Example: liveness version")
def version() -> None:
    """Print the versions of the program, the wheel, Python and the protocol."""
    from platform import python_version

    from liveness.build import WHEEL, WHY_REFERENCE
    from liveness.core.frames import PROTOCOL

    print(f"liveness {__version__} (Python {python_version()}, protocol {PROTOCOL})")
    print(f"wheel: {WHEEL}" + (f", because {WHY_REFERENCE}" if WHY_REFERENCE else ""))


def _path(flag: str | None) -> Path | None:
    return None if flag is None else Path(flag)

"""The process around a sidecar: its state, its sockets, its limits, its signals."""

import errno
import gc
import os
import resource
import signal
import socket
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterator,
)
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from liveness import __version__
from liveness.compiled import WHEEL, WHY_REFERENCE
from liveness.config.settings import SETTINGS, Config
from liveness.core.access import Access
from liveness.core.records import TIMER, Subscription, TimerRecord
from liveness.core.timer_states import Fire
from liveness.errors import StartError
from liveness.metrics import DOORS
from liveness.service.common.clock import Clock
from liveness.service.components import SidecarService
from liveness.service.http.sign_in import Token, read_token
from liveness.service.links.credentials import access_to, gid_of
from liveness.service.links.sockets import listening
from liveness.service.reload import Reloader
from liveness.service.storage.log_store import LogStore
from liveness.service.storage.timer_store import TimerStore
from liveness.service.systemd import ADMIN_SOCKET, GATEWAY_SOCKET, ServiceManager

# Records that the timers' table is told of at once.
REPLAYED_AT_ONCE: Final = 1_000
RUNS: Final = Subscription(None, frozenset({TIMER}))

# Open files besides those of links, of which each has its socket and at most one that
# reads from disk, and besides HTTP connections.
OTHER_FILES: Final = 100

# Nearly all that a storm makes is let go by counting. Walked as often as by default, it
# would cost a sixth of the CPU, and pauses of 20 ms.
COLLECT_EVERY: Final = (10_000, 20, 50)

_log = structlog.get_logger("sidecar")


async def serve(config: Config, read: Callable[[], Config]) -> None:
    """Run a sidecar until SIGTERM or SIGINT, or until its terminal is closed.

    Without a terminal SIGHUP has the settings read anew.

    Args:
        config: The settings.
        read: Reads them anew.
    Raises:
        StartError: A socket, port or folder is not to be had, or there is no token.
        StateError: What lies in the state directory cannot be used.
    """
    settings = {setting.name: setting.value_in(config) for setting in SETTINGS}
    _log.info(
        "starting",
        version=__version__,
        wheel=WHEEL,
        pid=os.getpid(),
        flush=config.flush,
        **{
            name: value if isinstance(value, bool) else str(value)
            for name, value in settings.items()
        },
    )
    if WHY_REFERENCE:
        _log.info("the wheel is the reference", why=WHY_REFERENCE)
    token = read_token(config.http.token_file)
    _allow_files(
        config.limits.max_links, config.http.max_connections, config.http.streams
    )
    manager, clock = ServiceManager(os.environ, os.getpid()), Clock()
    hangs_up = _is_ended_by_sighup()
    with ExitStack() as stack:
        # Before there is anything to clean up: a stop that comes early is a stop.
        signals = stack.enter_context(
            trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        )
        # Blocked since the command began, so that it ended nobody.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        # The state's lock comes first: of two that start at once only one gets to
        # look for stale sockets.
        store = LogStore(config.state.dir)
        stack.callback(store.close)
        with store.expecting_damage():
            _, next_seq = store.bounds()
        table = TimerStore(
            config.state.dir,
            log=store.log,
            next_seq=next_seq,
            parted=store.parted,
            reserve=store.reserve,
            ladder=config.timers.ladder,
        )
        stack.callback(table.close)
        listens = partial(_listening_at, config=config, manager=manager)
        listener = stack.enter_context(listens(config.socket.path, GATEWAY_SOCKET))
        admin = stack.enter_context(listens(config.socket.admin_path, ADMIN_SOCKET))
        group = _group_of(listener)
        access = access_to(config.access, group=group)
        http = stack.enter_context(_listening_on(config.http.host, config.http.port))
        # Nothing of what is loaded is garbage; looking for some takes half the time.
        gc.disable()
        sidecar = load(config, store, table, clock, access, token)
        # What was loaded stays: the collector need not walk it ever again.
        gc.freeze()
        gc.set_threshold(*COLLECT_EVERY)
        gc.enable()
        stop = trio.Event()
        doors = {"http": http, "admin": admin}
        run = partial(sidecar.run, stop.wait, listener, doors)
        reloader = Reloader(config, read, sidecar, group=group)

        async def reload() -> None:
            at_us = clock.system_us()
            await manager.tell("RELOADING=1", f"MONOTONIC_USEC={at_us}")
            await reloader.reload()
            await manager.tell("READY=1")

        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as running:
                await running.start(run)
                address, port = http.getsockname()[:2]
                address = f"[{address}]" if ":" in address else address
                users = len(sidecar.presence)
                _log.info("ready", http=f"{address}:{port}", users=users)
                await manager.tell("READY=1", f"STATUS={sidecar.status}")
                nursery.start_soon(manager.keep_told, sidecar)
                ends = {signal.SIGTERM, signal.SIGINT}
                if hangs_up:
                    ends.add(signal.SIGHUP)
                number = await asked_to_stop(signals, ends, reload)
                _log.info("stopping", reason=signal.Signals(number).name)
                nursery.start_soon(_take_no_more, signals)
                nursery.start_soon(manager.tell, "STOPPING=1", "STATUS=stopping")
                stop.set()
            nursery.cancel_scope.cancel()


def load(
    config: Config,
    store: LogStore,
    table: TimerStore,
    clock: Clock,
    access: Access,
    token: Token | None = None,
) -> SidecarService:
    """Make a sidecar that goes on where the last process ended.

    Raises:
        StateError: What lies in the state directory is damaged.
    """
    with store.expecting_damage():
        store.check()
        _catch_up(table, store, clock.wall_ms())
        sidecar = SidecarService(config, store, table, clock, access, token)
        sidecar.restore()
    store.reserve.restore()
    return sidecar


def _catch_up(table: TimerStore, store: LogStore, wall_ms: int) -> None:
    """Tell the table of the runs that it had not noted when the last process ended."""
    newest = store.bounds()[1] - 1
    with table.expecting_damage():
        table.fit(newest, wall_ms=wall_ms)
        has_live = table.has_live
    reached = table.seq
    if not has_live:
        reached = newest
    damaged = store.damaged_records
    while reached < newest:
        page = store.read(
            after=reached, until=newest, wanted=RUNS, limit=REPLAYED_AT_ONCE
        )
        reached = page.reached
        with table.expecting_damage():
            table.write(
                [
                    # Not in the future, whatever was done to the wall clock meanwhile.
                    Fire(
                        one.gateway, one.key, one.attempt, one.seq, min(one.at, wall_ms)
                    )
                    for one in page.records
                    if isinstance(one, TimerRecord)
                ],
                seq=reached,
            )
    with table.expecting_damage():
        table.follow(newest)
    if store.damaged_records > damaged:
        _log.warning(
            "runs of timers may be among the damaged records; these timers fire again",
            records=store.damaged_records - damaged,
        )


@contextmanager
def _listening_at(
    path: Path, name: str, *, config: Config, manager: ServiceManager
) -> Iterator[socket.socket]:
    """Listen on a socket that was handed over, or on one of our own."""
    sock = manager.socket(name, path)
    if sock is not None:
        with sock:
            yield sock
        return
    group = config.socket.group
    with listening(
        path,
        mode=int(config.socket.mode, 8),
        group=gid_of(group, "socket.group") if group else None,
    ) as sock:
        yield sock


def _listening_on(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # The library adds the address to the system's words, in its own notation.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror or error
        remedies = {
            errno.EADDRINUSE: "stop what uses it, or name another with --http",
            errno.EACCES: "name a port from 1024 on with --http, or allow this user more",
        }
        remedy = remedies.get(number, "name one of this host's with --http")
        raise StartError(f"HTTP address {host}:{port}: {why}; {remedy}") from error


def _group_of(listener: socket.socket) -> int:
    return Path(os.fsdecode(listener.getsockname())).stat().st_gid


def _is_ended_by_sighup() -> bool:
    """Whether SIGHUP would mean that our terminal was closed, and nobody wants us to stay."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup has it
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


async def asked_to_stop(
    signals: AsyncIterable[int],
    ends: Container[int],
    reload: Callable[[], Awaitable[None]],
) -> int:
    """Wait for a signal that ends the sidecar, also while a reload waits for something.

    Args:
        signals: Those that come.
        ends: Those that end it.
        reload: What the others ask for.
    Returns:
        The signal.
    """
    # One reload behind that which runs sees whatever was written before it began.
    ask, asked = trio.open_memory_channel[None](1)

    async def reload_when_asked() -> None:
        async for _ in asked:
            await reload()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reload_when_asked)
        async for number in signals:
            if number in ends:
                break
            with suppress(trio.WouldBlock):
                ask.send_nowait(None)
        nursery.cancel_scope.cancel()
    return number


async def _take_no_more(signals: AsyncIterator[int]) -> None:
    """Take signals that come during the stop; left over, they would end it."""
    async for _ in signals:
        _log.info("stopping already")


def _allow_files(links: int, connections: int, streams: int) -> None:
    """Have as many open files allowed as links, doors and streams may need.

    Raises:
        StartError: This process may not have so many.
    """
    files = 2 * links + len(DOORS) * connections + streams + OTHER_FILES
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < files:
        raise StartError(
            f"{links} links and {connections} connections to each HTTP door need {files} "
            f"open files, and {most} are allowed; raise the limit (ulimit -Hn, "
            "LimitNOFILE=) or lower limits.max_links or http.max_connections"
        )
    if allowed != resource.RLIM_INFINITY and allowed < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))

"""The process of a sidecar: opens state and sockets, and reacts to signals."""

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
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from liveness import __version__
from liveness.config.compiled import WHEEL, WHY_PURE_PYTHON
from liveness.config.settings import Config
from liveness.core.access import Access
from liveness.core.records import TIMER, Subscription, TimerRecord
from liveness.core.timer_states import Fire
from liveness.errors import StartError
from liveness.metrics.counts import DOORS
from liveness.service.common.clock import Clock
from liveness.service.components import SidecarService
from liveness.service.http.bearer import Token, read_token
from liveness.service.links.credentials import access_to, gid_of
from liveness.service.links.sockets import listening, make_socket_folder
from liveness.service.reload import Reloader
from liveness.service.storage.log_store import LogStore
from liveness.service.systemd import ServiceManager
from liveness.service.timers import timer_store
from liveness.service.timers.timer_store import TimerStore

# Timer records in one batch from the log to the table.
REPLAY_RECORDS: Final = 1_000
TIMER_RECORDS: Final = Subscription(None, frozenset({TIMER}))

# Open files besides those of HTTP connections and links. A link has two at most: its
# socket, and one to read the log.
OTHER_FILES: Final = 100

# Thresholds of the garbage collector. Reference counting frees nearly all objects; with
# the default thresholds a storm costs a sixth of the CPU, and pauses of 20 ms.
COLLECT_EVERY: Final = (10_000, 20, 50)

_log = structlog.get_logger("sidecar")


async def serve(config: Config, read: Callable[[], Config]) -> None:
    """Run a sidecar until SIGTERM or SIGINT, or until its terminal is closed.

    Without a terminal, SIGHUP reloads the settings.

    Args:
        config: The settings.
        read: Reads the settings again.
    Raises:
        StartError: A socket, port or folder cannot be used, or the token file is missing.
        StateError: The content of the state directory cannot be used.
    """
    make_socket_folder(config.socket.path)
    token = read_token(config.http.token_file)
    _raise_file_limit(config)
    manager, clock = ServiceManager(os.environ, os.getpid()), Clock()
    stop_signals = {signal.SIGTERM, signal.SIGINT}
    if _is_stopped_by_sighup():
        stop_signals.add(signal.SIGHUP)
    with ExitStack() as stack:
        # First, so that a signal during the start leads to an orderly stop.
        signals = stack.enter_context(
            trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        )
        # `liveness serve` blocked it, as by default it would end the process.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        # The lock of the state directory comes before the sockets: of two sidecars that
        # start together only one may remove stale sockets.
        store, table = _open_state(config, stack)
        passed = manager.socket(config.socket.path)
        listener = stack.enter_context(
            passed or _unix_listener(config.socket.path, config)
        )
        admin = stack.enter_context(_unix_listener(config.socket.admin_path, config))
        group = _group_of(listener)
        access = access_to(config.access, group=group)
        http = stack.enter_context(_tcp_listener(config.http.host, config.http.port))
        with _paused_collector():
            sidecar = load(config, store, table, clock, access, token)
        reloader = Reloader(config, read, sidecar, group=group)

        async def reload() -> None:
            at_us = clock.system_us()
            await manager.notify("RELOADING=1", f"MONOTONIC_USEC={at_us}")
            await reloader.reload()
            await manager.notify("READY=1")

        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as running:
                doors = {"http": http, "admin": admin}
                await running.start(sidecar.run, stop.wait, listener, doors)
                _log_ready(http, users=len(sidecar.presence))
                await manager.notify("READY=1", f"STATUS={sidecar.status}")
                nursery.start_soon(manager.report_status, sidecar)
                number = await wait_for_stop(signals, stop_signals, reload)
                _log.info("stopping", reason=signal.Signals(number).name)
                nursery.start_soon(_ignore_signals, signals)
                nursery.start_soon(manager.notify, "STOPPING=1", "STATUS=stopping")
                stop.set()
            nursery.cancel_scope.cancel()


def log_start(config: Config) -> None:
    """Log what runs, as whom, and where; `liveness check-config` has all settings."""
    _log.info(
        "starting",
        version=__version__,
        wheel=WHEEL,
        pid=os.getpid(),
        unix_user=os.geteuid(),
        timeout_s=config.timeout_s,
        slots=config.slots,
        flush_s=config.flush,
        socket=str(config.socket.path),
        state=str(config.state.dir),
        http=config.http.address,
        has_token=config.http.token_file is not None,
    )
    if WHY_PURE_PYTHON:
        _log.info("the wheel is the reference", why=WHY_PURE_PYTHON)


def _log_ready(http: socket.socket, *, users: int) -> None:
    address, port = http.getsockname()[:2]
    address = f"[{address}]" if ":" in address else address
    _log.info("ready", http=f"{address}:{port}", users=users)


def _open_state(config: Config, stack: ExitStack) -> tuple[LogStore, TimerStore]:
    """Lock and open the state directory, until the stack is closed."""
    runtime = config.socket.path.parent
    store = LogStore(config.state.dir, runtime, made_later=timer_store.DATABASE)
    stack.callback(store.close)
    with store.expecting_damage():
        _, next_seq = store.bounds()
    table = TimerStore(
        config.state.dir,
        log=store.log,
        next_seq=next_seq,
        ancestors=store.ancestors,
        reserve=store.reserve,
        retry_policy=config.timers.retry_policy,
    )
    stack.callback(table.close)
    return store, table


@contextmanager
def _paused_collector() -> Iterator[None]:
    """Pause the garbage collector while the state loads, and exempt the state from it.

    Otherwise loading would take twice as long, and there is no garbage to find.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(*COLLECT_EVERY)
    gc.enable()


def load(
    config: Config,
    store: LogStore,
    table: TimerStore,
    clock: Clock,
    access: Access,
    token: Token | None = None,
) -> SidecarService:
    """Make a sidecar with the sessions and timers of the state directory.

    Raises:
        StateError: The content of the state directory is damaged.
    """
    # The log may have been moved away.
    clock.resume_state(store.clock or table.clock)
    now_ms, ahead_ms = clock.state_ms(), clock.wall_ahead_ms()
    with store.expecting_damage():
        store.check()
        sidecar = SidecarService(config, store, table, clock, access, token)
        catch_up = partial(_catch_up, now_ms=now_ms, ahead_ms=ahead_ms)
        sidecar.restore(partial(catch_up, table, store))
        store.begin(clock.state_time())
        store.trimmer.begin(now_ms)
        table.store_clock(clock.state_time())
    store.reserve.restore()
    return sidecar


def _catch_up(
    table: TimerStore, store: LogStore, *, now_ms: int, ahead_ms: int
) -> None:
    """Apply the newest timer records of the log to the table, which may lack them.

    The wall clock is *ahead_ms* ahead of the state's clock, which shows *now_ms*.
    """
    newest = store.bounds()[1] - 1
    with table.expecting_damage():
        table.reconcile_with_log(newest)
        has_live = table.has_live
    reached = table.seq
    if not has_live:
        reached = newest
    damaged = store.damaged_records(0)
    while reached < newest:
        page = store.read(
            after=reached, until=newest, wanted=TIMER_RECORDS, limit=REPLAY_RECORDS
        )
        reached = page.reached
        with table.expecting_damage():
            table.write(
                [
                    # The wall clock may have been set since the record was made.
                    Fire(
                        record.gateway,
                        record.key,
                        record.attempt,
                        record.seq,
                        min(record.at - ahead_ms, now_ms),
                    )
                    for record in page.records
                    if isinstance(record, TimerRecord)
                ],
                seq=reached,
            )
    with table.expecting_damage():
        table.follow(newest)
    if store.damaged_records(0) > damaged:
        _log.warning(
            "timer records may be among the damaged records; these timers fire again",
            records=store.damaged_records(0) - damaged,
        )


def _unix_listener(path: Path, config: Config) -> AbstractContextManager[socket.socket]:
    group = config.socket.group
    return listening(
        path,
        mode=int(config.socket.mode, 8),
        group=gid_of(group, "socket.group") if group else None,
    )


def _tcp_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # create_server adds the address to the text of its errors: build the text anew.
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror or error
        raise StartError(
            f"HTTP address {host}:{port}: {why}; choose another with --http, or stop what "
            "uses it"
        ) from error


def _group_of(listener: socket.socket) -> int:
    return Path(os.fsdecode(listener.getsockname())).stat().st_gid


def _is_stopped_by_sighup() -> bool:
    """Whether SIGHUP means that the terminal was closed, and should stop the sidecar."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started by nohup
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


async def wait_for_stop(
    signals: AsyncIterable[int],
    stop_signals: Container[int],
    reload: Callable[[], Awaitable[None]],
) -> int:
    """Wait for a signal that stops the sidecar, also while a reload is running; return it.

    *reload* is called for each other signal, one call at a time.
    """
    # One waiting reload is enough: it sees every change made before it begins.
    send, requests = trio.open_memory_channel[None](1)

    async def reload_on_request() -> None:
        async for _ in requests:
            await reload()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reload_on_request)
        async for number in signals:
            if number in stop_signals:
                break
            with suppress(trio.WouldBlock):
                send.send_nowait(None)
        nursery.cancel_scope.cancel()
    return number


async def _ignore_signals(signals: AsyncIterator[int]) -> None:
    """Consume signals during the stop: trio would raise those left over."""
    async for _ in signals:
        _log.info("stopping already")


def _raise_file_limit(config: Config) -> None:
    """Raise the limit on open files to what links and HTTP may need.

    Raises:
        StartError: The hard limit is lower than that.
    """
    links, connections = config.limits.max_links, config.http.max_connections
    files = 2 * links + len(DOORS) * connections + config.http.max_streams + OTHER_FILES
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < files:
        raise StartError(
            f"{links} links and {connections} connections to each HTTP listener need "
            f"{files} open files, and {most} are allowed; raise the limit (ulimit -Hn, "
            "LimitNOFILE=) or lower limits.max_links"
        )
    if allowed != resource.RLIM_INFINITY and allowed < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))

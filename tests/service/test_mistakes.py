"""Mistakes that a person can make, made on purpose, and what the program says to them.

A row of the table is a command, what is wrong beforehand, the exit code, and the whole
line on stderr. Read it as whoever is on call at night does: what is wrong, where, and
what to do. A mistake whose line a unit test shows has no row. `{here}` is a folder of the
row's own, `{live}` and `{open}` are those of sidecars that run, and `…` is any text, such
as the system's own errors.

Commands run in this process, except where only a process can make the mistake: as
another user, under another limit, or by way of the shell.
"""

import faulthandler
import gc
import json
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from liveness.cli import main
from liveness.service.storage.log_store import DATABASE, Batch, LogStore
from liveness.service.timers.timer_store import TimerStore
from tests.helpers.log_setup import log_setup_restored
from tests.helpers.needs import require_root
from tests.helpers.tree import ROOT
from tests.system.os_users import SOMEBODY, Person, runs_as
from tests.system.sidecar import READY_S, Sidecar

SERVE: Final = (
    "serve --http 127.0.0.1:0 --socket {here}/gateway.sock --state {here}/state"
)
STRANGER: Final = Person(SOMEBODY, SOMEBODY)
SQLITES: Final = {"-wal", "-shm"}
NO_CLUSTER: Final = (
    "no cluster is configured: set cluster.url in the settings file, or "
    "LIVENESS_CLUSTER_URL; see `liveness check-config`"
)

Given = Callable[[Path, ExitStack], object]


class Mistake(NamedTuple):
    """A row of the table."""

    name: str
    command: str
    code: int
    line: str  # without "liveness: "
    given: Given | None = None  # what is wrong beforehand
    environ: dict[str, str] = {}  # noqa: RUF012 - never changed
    before: str = ""  # `sh` runs this in a process that then becomes the command
    person: Person | None = None  # the command runs as this user

    @property
    def needs_a_process(self) -> bool:
        is_of_the_shell = "$(" in self.command or ">" in self.command
        return bool(self.before or self.person or is_of_the_shell)


# --- what is wrong beforehand ---------------------------------------------------------


def text(name: str, content: str | bytes = "", mode: int = 0o600) -> Given:
    def make(here: Path, _: ExitStack) -> None:
        data = content.encode() if isinstance(content, str) else content
        (here / name).write_bytes(data)
        (here / name).chmod(mode)

    return make


def both(*givens: Given) -> Given:
    return lambda here, stack: [given(here, stack) for given in givens]


def answered(name: str, answer: bytes | None) -> Given:
    """A socket of another program, which says *answer* and hangs up; None: nothing."""

    def make(here: Path, stack: ExitStack) -> None:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(here / name))
        listener.listen()

        def serve(answer: bytes) -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        if answer is not None:
            threading.Thread(target=serve, args=[answer], daemon=True).start()

    return make


def abandoned(here: Path, _: ExitStack) -> None:
    """Sockets left by a process that is no more."""
    for name in ("gateway.sock", "admin.sock"):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(here / name))


def taken(here: Path, stack: ExitStack) -> None:
    """A port that another program has; written to a file for the command."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    (here / "port").write_text(str(listener.getsockname()[1]))


def state(here: Path, _: ExitStack) -> None:
    """The state of a sidecar that is down."""
    with closing(LogStore(here / "state")) as store:
        store.write(Batch())
        TimerStore(here / "state", log=store.log).close()


def damaged(here: Path, stack: ExitStack) -> None:
    """That state, with a log that is none of SQLite's any more."""
    state(here, stack)
    (here / "state" / DATABASE).write_bytes(b"not a database" * 400)


def bad_page(last: int) -> Given:
    """That state, with a page of its log that says nothing, up to this record."""

    def make(here: Path, stack: ExitStack) -> None:
        state(here, stack)
        with closing(sqlite3.connect(here / "state" / DATABASE)) as db, db:
            db.execute("insert into log values (?, 1, 1, x'93c1', 0)", [last])

    return make


def chown_all(here: Path, _: ExitStack) -> None:
    for path in (here, *here.rglob("*")):
        os.chown(path, STRANGER.unix_user, STRANGER.gid)


# --- the table ------------------------------------------------------------------------

COMMAND_LINES: Final = [
    Mistake("unknown command like no other", "zzz", 2, 'Unknown command "zzz". Available commands: serve, …, timers; see `liveness --help`'),
    Mistake("command of a gateway with an open quote", """demo --gateway "cat '{socket} {port}" """, 78, "the gateway's command \"cat '{socket} {port}\": No closing quotation"),
    Mistake("command of a gateway without a port", "demo --gateway 'cat {socket}'", 78, "the gateway's command 'cat {socket}' needs {port} where your program takes the port for its users, and may have no others than {socket}, {name}, {port}, {most}"),
    Mistake("command of a gateway that does not exist", "demo --gateway '{here}/gw {socket} {port}'", 78, "there is no program '{here}/gw': build it first, or name its path"),
    Mistake("user that is none", "explain int:9223372036854775808", 2, "…'int:9223372036854775808' is no uid: a string of 1 to 255 bytes of UTF-8 without control characters, or int:N with N from 0 to 2^63-1; see `liveness explain --help`"),
    Mistake("timer without a key", "timers show ''", 2, "'' is no key: a string of 1 to 255 bytes of UTF-8 without control characters; see `liveness timers show --help`"),
    Mistake("gateway without a name", "gateways forget ''", 2, "…'' is no name: a string of 1 to 64 bytes of UTF-8 without control characters; see `liveness gateways forget --help`"),
    Mistake("sidecar's flag beside the cluster", "watch --cluster --after 3", 2, "--after is of one sidecar: leave it out with --cluster; see `liveness watch --help`"),
]  # fmt: skip

SETTINGS: Final = [
    Mistake("names that are no ties", "check-config", 78, "access.names is 'gw-1' (environment LIVENESS_ACCESS_NAMES): it must be …", environ={"LIVENESS_ACCESS_NAMES": "gw-1"}),
    Mistake("variable like no other", "check-config", 78, "environment: there is no setting LIVENESS_NOSUCH, nor one like it; remove it: without it `liveness check-config` lists those that there are", environ={"LIVENESS_NOSUCH": "1"}),
    Mistake("secret that is not there", "check-config --config {here}/l.toml > /dev/null", 78, "webhooks.mail.secret_file: /nowhere/s cannot be read (No such file or directory); correct the path or its mode", text("l.toml", "[webhooks.mail]\nurl = 'https://a.example/'\nsecret_file = '/nowhere/s'\n")),
    Mistake("socket without a name", "serve --socket /", 78, "socket.path is '/' (flag --socket): it is a folder; name the socket in it"),
    Mistake("wheel that is no choice", "version", 78, "LIVENESS_PURE_WHEEL is 'yes' (environment): it must be 0 or 1 (1: the reference wheel, though there is a compiled one)", environ={"LIVENESS_PURE_WHEEL": "yes"}, before=":"),
    Mistake("socket of the admin's name", "serve --socket {here}/admin.sock", 78, "socket.path is '… (flag --socket): admin.sock is the name of the socket beside it"),
]  # fmt: skip

SOCKETS: Final = [
    Mistake("group of the socket unknown", SERVE, 1, "socket.group names the group 'no-such-group', which does not exist on this host; create it, or give its number", environ={"LIVENESS_SOCKET_GROUP": "no-such-group"}),
    Mistake("group of the socket not one's own", SERVE, 1, "socket {here}/gateway.sock: it cannot be given to group 0, as this process is not a member; make it one, or correct socket.group", chown_all, {"LIVENESS_SOCKET_GROUP": "0"}, person=STRANGER),
    Mistake("user of [access] unknown", SERVE, 1, "access.gateways names the user 'no-such-user', which does not exist on this host; create it, or give its number", environ={"LIVENESS_ACCESS_GATEWAYS": "own,no-such-user"}),
    Mistake("group of [access] unknown", SERVE, 1, "access.watchers names the group 'no-such-group', which does not exist on this host; create it, or give its number", environ={"LIVENESS_ACCESS_WATCHERS": "@no-such-group"}),
    Mistake("user of access.names unknown", SERVE, 1, "access.names names the user 'no-such-user', which does not exist on this host; create it, or give its number", environ={"LIVENESS_ACCESS_NAMES": "gw-1=no-such-user"}),
    Mistake("group of no number that there is", SERVE, 1, "socket.group names the group 4294967295, and the highest id of a group is 4294967294; correct it", environ={"LIVENESS_SOCKET_GROUP": "4294967295"}),
    Mistake("address of another host", "serve --http 192.0.2.7:9874 --socket {here}/gateway.sock --state {here}/state", 1, "HTTP address 192.0.2.7:9874: Cannot assign requested address; choose another with --http, or stop what uses it", text("token", "correct-horse/battery+staple=="), {"LIVENESS_HTTP_TOKEN_FILE": "{here}/token"}),
    Mistake("port taken", "serve --http 127.0.0.1:$(cat {here}/port) --socket {here}/gateway.sock --state {here}/state", 1, "HTTP address 127.0.0.1:…: Address already in use; choose another with --http, or stop what uses it", taken),
    Mistake("socket of a service manager that is none", SERVE, 1, "the service manager's socket: descriptor 3 is no socket (…); start it with the socket that LISTEN_FDS counts", before="LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=gateway; export LISTEN_PID LISTEN_FDS LISTEN_FDNAMES; exec 3</dev/null"),
    Mistake("open files", SERVE, 1, "1000 links and 100 connections to each HTTP listener need … open files, and 256 are allowed; raise the limit (ulimit -Hn, LimitNOFILE=) or lower limits.max_links", before="ulimit -n 256"),
]  # fmt: skip


FILES: Final = [
    Mistake("log with a damaged end", SERVE, 1, "{here}/state/liveness.db cannot be read (the newest page of the log says that it has the records 1 to 5000); it was left as it is: restore a backup, or move it away, with its -wal and -shm, to start with an empty log", bad_page(5_000)),
    Mistake("log damaged", SERVE, 1, "{here}/state/liveness.db cannot be read (file is not a database); it was left as it is: restore a backup, or move it away, with its -wal and -shm, to start with an empty log", damaged),
    Mistake("no room at the start", SERVE, 1, "{here}/state/liveness.db: disk I/O error; make room or repair the disk, nothing is lost", before="ulimit -f 4"),
    Mistake("backup to a name that is too long", "backup --state {here}/state {here}/" + "b" * 260, 1, "{here}/" + "b" * 260 + ": File name too long; no file is left behind: make room, or name a FILE elsewhere", state),
    Mistake("backup of no state", "backup --state {here}/state {here}/b.tar", 1, "{here}/state/liveness.db: there is no state to back up; name its folder with --state"),
    Mistake("backup on a disk that is full in the end", "backup --state {here}/state {here}/b.tar", 1, "{here}/b.tar: File too large; no file is left behind: make room, or name a FILE elsewhere", state, before="ulimit -f 70"),
    Mistake("comparison with an empty log", "compare {here}/theirs --state {here}/state", 1, "the log in {here}/state is empty, so there is nothing to compare: name the sidecar's state directory with --state", both(state, text("theirs"))),
    Mistake("log that leads nowhere", "log --state {here}/state", 1, "{here}/state/liveness.db cannot be read: Too many levels of symbolic links; run this as the user of the sidecar, or name its state directory with --state", lambda here, _: (here / "state").symlink_to("state")),
    Mistake("log that is damaged within", "log --state {here}/state", 1, "the log in {here}/state is not whole: records 1 to 1 are damaged on disk and left out: see `liveness check-state`", bad_page(1)),
    Mistake("log of a file in place of a folder", "log --state {here}/state/liveness.db", 1, "there is no log in {here}/state/liveness.db: name the sidecar's state directory with --state", state),
]  # fmt: skip

CLIENTS: Final = [
    Mistake("socket nobody listens on", "watch --socket {here}/gateway.sock", 1, "no sidecar at {here}/gateway.sock: start it with `liveness serve`, or name another with --socket", abandoned),
    Mistake("socket of a program that hangs up", "watch --socket {here}/gateway.sock", 1, "{here}/gateway.sock: the connection was closed; see the sidecar's log", answered("gateway.sock", b"")),
    Mistake("admin socket of a program that says nothing", "status --socket {here}/gateway.sock", 1, "what listens at {here}/admin.sock does not answer: see the sidecar's log, or name another with --socket", answered("admin.sock", None)),
    Mistake("gateway socket of another user", "watch --socket {live}/gateway.sock", 1, "not allowed to connect to {live}/gateway.sock: run this as its user, or in its group", person=STRANGER),
    Mistake("watch by whom [access] keeps out", "watch --socket {open}/gateway.sock", 1, "{open}/gateway.sock: it says … (not-allowed); see its log", person=STRANGER),
    Mistake("admin socket by whom [access] keeps out", "timers list --socket {open}/gateway.sock", 1, "…access.admin…", person=STRANGER),
    Mistake("status of a cluster that is not configured", "cluster status", 1, NO_CLUSTER),
    Mistake("cluster where no Redis is", "cluster status", 1, "Redis at 127.0.0.1:1: …; is the address right, and does Redis run there?", environ={"LIVENESS_CLUSTER_URL": "redis://127.0.0.1:1"}),
    Mistake("gateway that is none", "gateways forget gw-9 --socket {live}/gateway.sock", 1, "no gateway 'gw-9' is known: `liveness gateways list` shows those that are"),
    Mistake("output full", "check-config > /dev/full", 1, "the output cannot be written (No space left on device); give it another place"),
]  # fmt: skip


MISTAKES: Final = [*COMMAND_LINES, *SETTINGS, *SOCKETS, *FILES, *CLIENTS]


# --- they are made --------------------------------------------------------------------


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a sidecar that runs, and has a gateway."""
    folder = tmp_path_factory.mktemp("live")
    with Sidecar(folder) as running:
        running.start()
        running.gateway("gw-a")
        yield folder


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """That of one whose sockets anybody may connect to, and [access] keeps them out."""
    folder = tmp_path_factory.mktemp("open")
    with Sidecar(folder, socket_mode="0666", guard_enabled="true") as running:
        running.start()
        yield folder


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undoes what `serve` does to the process that it runs in."""
    monkeypatch.setattr(faulthandler, "enable", lambda: None)
    with log_setup_restored():
        yield
    gc.enable()


def placed(text: str, places: Mapping[str, Path]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: str(places.get(found[1], found[0])), text)


def files_in(folder: Path, command: str) -> set[Path]:
    """What no command may leave; `serve` leaves a state, and a backup SQLite's files."""
    found = {path for path in folder.rglob("*") if path.name[-4:] not in SQLITES}
    if command.startswith("serve"):
        return {path for path in found if path.is_socket()}
    return found


def mistakes_in(said: str) -> Iterator[str]:
    """The lines on stderr for a person; `serve` logs that line, as JSON."""
    for line in said.splitlines():
        logged = json.loads(line) if line.startswith("{") else {}
        if logged.get("event") == "failed":
            yield f"liveness: {logged['error']}"
        elif "event" not in logged:
            yield line


def in_a_process(row: Mistake, command: str) -> tuple[int, str, str]:
    under = runs_as(row.person) if row.person else []
    program = " ".join([*under, sys.executable, "-m", "liveness", command])
    done = subprocess.run(
        ["sh", "-c", f"{row.before or ':'}; exec {program}"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * READY_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[pytest.mark.long] if row.needs_a_process else [])
        for row in MISTAKES
    ],
    ids=lambda row: row.name,
)
def test_a_mistake_is_one_line_with_the_remedy(
    row: Mistake,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if row.person is not None:
        require_root()
    places = {"here": tmp_path_factory.mktemp("m")}
    for place, fixture in {"live": "live", "open": "opened"}.items():
        if f"{{{place}}}" in row.command:
            places[place] = request.getfixturevalue(fixture)
    for name, value in row.environ.items():
        monkeypatch.setenv(name, placed(value, places))
    command = placed(row.command, places)
    with ExitStack() as stack:
        if row.given:
            row.given(places["here"], stack)
        before = files_in(places["here"], command)
        if row.needs_a_process:
            code, shown, said = in_a_process(row, command)
        else:
            capfd.readouterr()
            code = main.main(shlex.split(command))
            shown, said = capfd.readouterr()
        assert files_in(places["here"], command) == before
    lines = list(mistakes_in(said))
    assert len(lines) == 1, said
    expected = placed(f"liveness: {row.line}", places).split("…")
    assert re.fullmatch(".*".join(map(re.escape, expected)), lines[0]), lines[0]
    assert code == row.code
    assert shown == ""

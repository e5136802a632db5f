"""SIGHUP: settings read anew while the sidecar serves; wrong ones change nothing."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.client import Client
from tests.e2e.conftest import Start
from tests.e2e.persons import CREW, SOMEBODY, Person, as_root
from tests.e2e.sidecar import Line, Sidecar, eventually
from tests.e2e.tty import Tty

MEMBER = Person(SOMEBODY, SOMEBODY, (CREW,))
WORDS = "correct-horse/battery+staple=="
READ = "settings read anew"
WRONG = (
    "the settings are wrong, and nothing was changed; correct them and have them read "
    "again"
)
PLAIN = "# the defaults"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the file of settings."""

    def written(text: str) -> Path:
        path = tmp_path / "liveness.toml"
        path.write_text(text)
        return path

    return written


def reread(sidecar: Sidecar, event: str = READ) -> Line:
    """Has it read its settings anew; what it says of that."""
    before = len(sidecar.lines)

    def said() -> list[Line]:
        return [line for line in sidecar.lines[before:] if line["event"] == event]

    sidecar.signal(signal.SIGHUP)
    eventually(lambda: bool(said()), lambda: str(sidecar.lines))
    return said()[-1]


@as_root
def test_access_is_what_it_says_from_then_on_and_links_stay(
    make: Start, write: Write
) -> None:
    sidecar = make(config=write(""), socket_mode="0666")
    sidecar.folder.chmod(0o755)
    sidecar.start()
    gateway = sidecar.gateway("mine")
    with MEMBER.connect(sidecar.socket) as refused:
        assert b"not-allowed" in refused.recv(4096)
    write(f'[access]\ngateways = "own,@{CREW}"\nwatchers = "own"')
    said = reread(sidecar)
    assert said["changed"] == ["access.gateways", "access.watchers"]
    assert said["after_a_restart"] == []
    with Client(MEMBER.connect(sidecar.socket)) as allowed:
        allowed.hello("theirs")
    gateway.send("login", "ada")
    gateway.settle()
    assert sidecar.metric("liveness_users_online") == 1


def test_the_token_is_the_one_that_is_in_its_file_now(
    make: Start, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(WORDS)
    path.chmod(0o600)
    sidecar = make(http_token_file=path).start()

    def answer(words: str) -> int:
        said = f"Bearer {words}"
        return sidecar.ask("http", "GET", "/v1/wheel", authorization=said)[0].status

    assert (answer(WORDS), answer(WORDS[::-1])) == (200, 401)
    path.write_text(WORDS[::-1])
    assert reread(sidecar)["new_token"]
    assert not reread(sidecar)["new_token"]
    assert (answer(WORDS), answer(WORDS[::-1])) == (401, 200)


def test_the_level_changes_and_what_waits_for_a_restart_is_named(
    make: Start, write: Write
) -> None:
    sidecar = make(config=write("slots = 60")).start()
    write('slots = 90\n[logging]\nlevel = "debug"\n[limits]\nwindow = 5')
    said = reread(sidecar)
    assert said["changed"] == ["logging.level"]
    assert said["after_a_restart"] == ["slots", "limits.window"]
    assert reread(sidecar)["changed"] == []
    write('logging.level = "error"')
    assert reread(sidecar)["changed"] == ["logging.level"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("slots = 1", "slots is 1 ("),
        ("[acess]", "there is no setting acess; the nearest is access"),
        ('[access]\nadmin = "no-such-user"', "access.admin names the user"),
    ],
)
def test_wrong_settings_are_told_and_change_nothing(
    make: Start, write: Write, text: str, told: str
) -> None:
    sidecar = make(config=write(PLAIN)).start()
    write(f'logging.level = "error"\n{text}')
    assert told in reread(sidecar, WRONG)["error"]
    write(PLAIN)
    assert reread(sidecar)["changed"] == []
    assert sidecar.stop() == 0


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_file_without_content_is_not_taken_for_the_defaults(
    make: Start, write: Write, text: str
) -> None:
    sidecar = make(config=write('[access]\nwatchers = "own"')).start()
    path = write(text)
    assert reread(sidecar, WRONG)["error"].startswith(f"{path}: it is empty, ")
    write('[access]\nwatchers = "own"')
    assert reread(sidecar)["changed"] == []
    write(PLAIN)
    assert reread(sidecar)["changed"] == ["access.watchers"]


def test_a_signal_amid_the_start_waits_and_a_pipe_is_read_at_the_start_only(
    make: Start, tmp_path: Path
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    sidecar = make(config=path)
    sidecar.launch()
    with path.open("w") as pipe:  # waits until the settings are being read
        sidecar.signal(signal.SIGHUP)
        pipe.write('[access]\nwatchers = "own"')
    assert sidecar.line(WRONG)["error"].startswith(f"{path}: it is no regular file, ")
    assert sidecar.get("/readyz")[0] == 200
    assert sidecar.stop() == 0


def test_on_a_terminal_it_ends_in_order_when_that_is_closed(make: Start) -> None:
    sidecar = make()
    with Tty(*sidecar.command()[1:]) as tty:
        tty.until("ready")
        assert sidecar.socket.exists()
        os.kill(tty.pid, signal.SIGHUP)
        tty.until("stopped")
        tty.until("ended 0")
    assert not sidecar.socket.exists()

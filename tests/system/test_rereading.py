"""SIGHUP: settings are read anew while the sidecar serves; wrong ones change nothing."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.needs import as_root
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.os_users import CREW, SOMEBODY, Person
from tests.system.sidecar import Line, Sidecar, eventually

MEMBER = Person(SOMEBODY, SOMEBODY, (CREW,))
READ = "settings read anew"
WRONG = (
    "the settings are wrong, and nothing was changed; correct them, and reload again"
)
PLAIN = "# the defaults"
NAME = "liveness.toml"


def reread(sidecar: Sidecar, text: str | None = None, event: str = READ) -> Line:
    """Has settings read anew, of which *text* is the file, and waits for what is said."""
    if text is not None:
        (sidecar.folder / NAME).write_text(text)
    before = len(sidecar.lines)

    def said() -> list[Line]:
        return [line for line in sidecar.lines[before:] if line.get("event") == event]

    sidecar.signal(signal.SIGHUP)
    eventually(lambda: bool(said()), lambda: str(sidecar.lines))
    return said()[-1]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One sidecar for all tests, each of which begins by resetting its settings."""
    folder = tmp_path_factory.mktemp("s")
    folder.chmod(0o755)
    path = folder / NAME
    path.write_text(PLAIN)
    with Sidecar(folder, config=path, socket_mode="0666") as sidecar:
        yield sidecar.start()


@as_root
def test_access_changes_for_new_links_and_older_ones_stay(plain: Sidecar) -> None:
    reread(plain, PLAIN)
    gateway = plain.gateway("mine")
    with MEMBER.connect(plain.socket) as refused:
        assert b"not-allowed" in refused.recv(4096)
    text = f'slots = 90\n[access]\ngateways = "own,@{CREW}"\nwatchers = "own"'
    said = reread(plain, text)
    assert said["changed"] == ["access.gateways", "access.watchers"]
    assert said["after_a_restart"] == ["slots"]
    with Client(MEMBER.connect(plain.socket)) as allowed:
        allowed.hello("theirs")
    gateway.apply("login", "ada")
    assert plain.metric("liveness_users_online") == 1


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

"""A state goes from the last release to this version, and back by a backup only.

What each migration does is tested in `tests/service/storage/test_migrations.py`.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.processes import environment, ran, succeeded
from tests.helpers.tree import ROOT
from tests.helpers.wire import Record
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

pytestmark = pytest.mark.long

# The timeout of the user to report: longer than everything before the upgrade takes.
TIMEOUT_S: Final = 4.0
LIVE: Final = "select key from timers where next is not null"


@pytest.fixture
def sidecar(make: Start, previous: Path) -> Sidecar:
    """One of the last release; it does not run yet."""
    made = make()
    made.root = previous
    return made


def contents(folder: Path) -> dict[str, str]:
    """A digest of each file."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
    }


def shown(records: list[Record]) -> list[tuple[str, object]]:
    """The kind, and whom or which timer each of these records is about."""
    return [(r["kind"], r.get("uid", r.get("key"))) for r in records]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_users_timers_and_cursors_go_on_after_an_upgrade(
    sidecar: Sidecar, end: str
) -> None:
    sidecar.start()
    link, reader = sidecar.gateway("g", kinds=[]), sidecar.watcher("w", ack=True)
    link.send("login", ["stays", "left"], {"conn": [1, 2]})
    link.send("login", "silent", {"conn": 3, "timeout": TIMEOUT_S})
    link.send("logout", "left", {"conn": 2})
    link.send("after", "done", 0.1)
    (fired,) = link.take(1)
    link.send("ack", fired["seq"])
    link.send("done", "done")
    link.send("after", "tea", 1.5, {"payload": "green"})
    link.apply("after", "far", 3_600)
    kept = reader.take(5)
    reader.apply("ack", 3)
    online, _ = reader.listed()
    if end == "stop":
        sidecar.stop()
    else:
        sidecar.kill()

    sidecar.root = ROOT
    sidecar.start()
    watcher = sidecar.watcher(after=0)
    assert watcher.listed()[0] == online
    # A release without a mark beside the socket cannot show that the log goes on: it may
    # have another id, which readers pass.
    other = sidecar.watcher("other", after=3, log=reader.log)
    assert other.take(2)[:2] == kept[3:]
    link = sidecar.gateway("g", kinds=[])
    (tea,) = link.take(1)
    assert (tea["key"], tea["payload"], tea["attempt"]) == ("tea", "green", 1)
    link.send("done", "tea")
    watcher.until(lambda records: len(records) == 7)
    old, new = watcher.records[:5], watcher.records[5:]
    assert old == kept
    assert sidecar.watcher("w", ack=True).take(4)[:2] == kept[3:]
    assert sorted(shown(new)) == [("offline", "silent"), ("timer", "tea")]
    (silent,) = [record for record in new if record["kind"] == "offline"]
    assert silent["silence"] >= TIMEOUT_S
    sidecar.stop()
    assert not link.records
    assert sidecar.timer_rows(LIVE) == [("far",)]


def test_the_last_release_refuses_a_newer_state_and_leaves_it(
    sidecar: Sidecar, previous: Path
) -> None:
    sidecar.root = ROOT
    sidecar.start()
    link = sidecar.gateway("g")
    link.send("login", "ada", {"conn": 1})
    link.apply("after", "far", 3_600)
    sidecar.stop()
    before = contents(sidecar.state)
    done = ran(*sidecar.command(), cwd=previous, env=sidecar.environment())
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert "has schema 4, this version reads 2; use the version that wrote it" in line
    after = contents(sidecar.state)
    assert after.items() >= before.items()
    # SQLite makes these two to read the file; the next to open it begins them anew.
    assert after.keys() - before.keys() <= {"liveness.db-shm", "liveness.db-wal"}
    sidecar.start()
    assert set(sidecar.watcher().listed()[0]) == {"ada"}


def test_a_backup_from_before_the_upgrade_leads_back(
    sidecar: Sidecar, previous: Path
) -> None:
    sidecar.start()
    link = sidecar.gateway("g")
    link.send("login", "ada", {"conn": 1})
    link.apply("after", "far", 3_600)
    online, _ = link.listed()
    backup = sidecar.folder / "backup.tar"
    words = ["backup", str(backup), "--state", str(sidecar.state)]
    succeeded(ran(*sidecar.program, *words, cwd=previous, env=environment()))
    sidecar.stop()
    sidecar.root = ROOT
    sidecar.start()
    sidecar.stop()

    shutil.rmtree(sidecar.state)
    sidecar.state.mkdir(mode=0o700)
    succeeded(ran("tar", "-xf", backup, "-C", sidecar.state))
    sidecar.root = previous
    sidecar.start()
    assert sidecar.watcher().listed()[0] == online
    assert sidecar.timer_rows(LIVE) == [("far",)]

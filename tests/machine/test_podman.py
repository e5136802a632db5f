"""The image under a container engine: what the documents say of containers holds there."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.helpers.pages import lines_typed, section
from tests.helpers.tree import ROOT
from tests.machine.podman import IMAGE, Podman, line_of, replaced
from tests.system.sidecar import READY_S, eventually

# Building takes half a minute, and the first time its bases as long again.
pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]

NAME: Final = "liveness"
RUN: Final = line_of("docs/deployment.md", "podman run")
SOCKET: Final = "/run/liveness/gateway.sock"
PYTHON: Final = "/opt/liveness/bin/python"
LOAD: Final = ROOT / "tests" / "machine" / "load.py"
USERS: Final = 5_000
# More than any memory limit here, a MiB at a time.
HOG: Final = "kept = [bytearray(2**20) for _ in range(4096)]"
RESTORED: Final = "this is a backup, restored: it begins a log of its own"


@contextmanager
def serving(podman: Podman, **changes: str) -> Iterator[None]:
    """A sidecar's container, healthy; in the end neither it nor its volumes are left."""
    podman.typed(replaced(RUN, changes))
    try:
        wait_until_healthy(podman)
        yield
    finally:
        podman("rm", "--force", "--time", "0", NAME)
        podman("volume", "prune", "--force")


def wait_until_healthy(podman: Podman, restarts: int = 0) -> None:
    """Wait for a container that was started again so often, and serves."""
    health = ("podman", "healthcheck", "run", NAME)
    eventually(
        lambda: (
            podman.inspect(NAME, ".RestartCount") == str(restarts)
            and podman.ran(*health).returncode == 0
        ),
        lambda: said(podman),
        within_s=READY_S,
    )


def said(podman: Podman) -> str:
    """The output of the container."""
    done = podman.ran("podman", "logs", NAME)
    return done.stdout + done.stderr


class Gateway:
    """A gateway of 5,000 users in a container beside the sidecar's."""

    def __init__(self, podman: Podman) -> None:
        self._process = podman.popen(
            *("run", "--rm", "--interactive", "--network", "none", "--read-only"),
            *("--cap-drop", "ALL", "--user", "9875:9874"),
            *("--volume", "liveness-socket:/run/liveness"),
            *("--volume", f"{LOAD}:/load.py:ro"),
            *("--entrypoint", PYTHON, IMAGE, "/load.py", SOCKET),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "online\n"

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_exc: object) -> None:
        with self._process:
            self._process.terminate()

    def fall_silent(self) -> None:
        """Has a hundred more users fall silent."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def report(self) -> dict[str, Any]:
        """Its records, once all due ones have arrived."""
        printed, _ = self._process.communicate()
        found: dict[str, Any] = json.loads(printed)
        return found


def logins(podman: Podman) -> list[str]:
    """The records of all logins, as they are on disk."""
    log = ("liveness", "log", "--kind", "online", "--json")
    return podman("exec", NAME, *log).splitlines()


def test_the_image_has_neither_a_compiler_nor_what_it_was_built_from(
    podman: Podman,
) -> None:
    names = ["cc", "ld", "pip", "pip3", ".git", ".venv", "pyproject.toml"]
    named = " -o ".join(f"-name {name}" for name in names)
    search = f"find / -xdev \\( {named} \\); id -u; id -g"
    inside = podman("run", "--rm", "--entrypoint", "sh", IMAGE, "-c", search)
    assert inside.split() == ["9874", "9874"]


def test_a_container_is_healthy_writes_in_its_volumes_and_ends(podman: Podman) -> None:
    with serving(podman):
        touch = podman.ran("podman", "exec", NAME, "touch", "/etc/it", "/opt/it")
        assert touch.stderr.count("Read-only file system") == 2
        # All that it prints is a JSON object a line.
        assert all(json.loads(line)["event"] for line in said(podman).splitlines())
        podman("stop", NAME)
        assert podman.inspect(NAME, ".State.ExitCode") == "0", said(podman)


def test_users_are_right_after_a_kill_and_without_memory(podman: Podman) -> None:
    memory = {"podman run ": "podman run --memory 256m "}
    with serving(podman, **memory), Gateway(podman) as gateway:
        gateway.fall_silent()
        os.kill(process_of(podman), signal.SIGKILL)
        wait_until_healthy(podman, restarts=1)
        gateway.fall_silent()
        # The kernel would take the largest process, which is the other one.
        Path(f"/proc/{process_of(podman)}/oom_score_adj").write_text("1000")
        hog = podman.ran("podman", "exec", NAME, PYTHON, "-c", HOG)
        assert hog.returncode != 0
        wait_until_healthy(podman, restarts=2)
        gateway.fall_silent()
        report = gateway.report()
    assert (report["silent"], report["missed"], report["false"]) == (300, [], [])


def process_of(podman: Podman) -> int:
    return int(podman.inspect(NAME, ".State.Pid"))


def test_a_backup_in_a_container_is_restored_as_the_manual_says(podman: Podman) -> None:
    backup, remove, unpack = lines_of("Containers")
    with serving(podman):
        with Gateway(podman):
            eventually(lambda: len(logins(podman)) == USERS)
            made = podman.typed(backup)
            before = logins(podman)
        assert f"records up to {USERS:,}" in made
        podman.typed(remove)
        podman.typed(unpack)
        podman.typed(replaced(RUN, {"liveness-state:": "liveness-restored:"}))
        wait_until_healthy(podman)
        assert logins(podman) == before
        assert RESTORED in said(podman)


def test_a_backup_in_a_pod_is_restored_as_the_manual_says(
    podman: Podman, tmp_path: Path
) -> None:
    # What the pod has beside the image's own; and `podman exec` for `kubectl exec`.
    pod = {
        "podman run ": "podman run --env LIVENESS_STATE_DIR=/var/lib/liveness/state "
        "--volume liveness-backups:/var/backups/liveness "
    }
    lines = [
        re.sub(
            r"^kubectl exec (-i )?chat-0 -c liveness --", rf"podman exec \1{NAME}", it
        )
        for it in lines_of("Pods")
    ]
    *copies, unpack, exchange = lines
    with serving(podman, **pod):
        with Gateway(podman):
            eventually(lambda: len(logins(podman)) == USERS)
            before = logins(podman)
            for line in copies:
                listed = podman.typed(line, cwd=tmp_path)
            assert "liveness.db" in listed
        podman.typed(unpack, cwd=tmp_path)
        # It ends the container and with it itself, perhaps before its exit code is known.
        podman.ran("bash", "-c", exchange)
        wait_until_healthy(podman, restarts=1)
        assert logins(podman) == before
        assert RESTORED in said(podman)


def lines_of(title: str) -> list[str]:
    """The command lines in a section of the page about backups."""
    return [*lines_typed(section("docs/backups.md", title))]

"""The image under a container engine: what documents and manifests say holds."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import liveness
from tests.helpers.manifests import MANIFESTS, Manifests, environment, expanded
from tests.helpers.pages import lines_typed, section
from tests.helpers.tree import ROOT
from tests.machine.podman import IMAGE, Podman, kept, line_of, replaced
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
TOKEN: Final = "a-token-of-a-test-only"
URL: Final = "http://127.0.0.1:9874"


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """A Podman that has the sidecar's image."""
    with kept(tmp_path_factory.mktemp("podman")) as made:
        made.build(line_of("docs/deployment.md", "podman build"))
        yield made


@contextmanager
def serving(podman: Podman, **changes: str) -> Iterator[None]:
    """A sidecar's container, healthy; in the end neither it nor its volumes are left."""
    podman.typed(replaced(RUN, changes))
    try:
        wait_until_healthy(podman)
        yield
    finally:
        removed(podman, NAME)


def removed(podman: Podman, name: str) -> None:
    podman("rm", "--force", "--ignore", "--time", "0", name)
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


def process_of(podman: Podman) -> int:
    return int(podman.inspect(NAME, ".State.Pid"))


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


def lines_of(title: str) -> list[str]:
    """The command lines in a section of the page about backups."""
    return [*lines_typed(section("docs/backups.md", title))]


# --- the image ----------------------------------------------------------------------


def test_the_image_has_neither_a_compiler_nor_what_it_was_built_from(
    podman: Podman,
) -> None:
    names = ["cc", "ld", "pip", "pip3", ".git", ".venv", "pyproject.toml"]
    named = " -o ".join(f"-name {name}" for name in names)
    search = f"find / -xdev \\( {named} \\); id -u; id -g"
    inside = podman("run", "--rm", "--entrypoint", "sh", IMAGE, "-c", search)
    assert inside.split() == ["9874", "9874"]
    label = '.Config.Labels "org.opencontainers.image.version"'
    assert podman.inspect(IMAGE, f"index {label}") == liveness.__version__
    assert podman("run", "--rm", IMAGE, "version").endswith("wheel: compiled")


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


# --- a pod --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pod(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Both containers of the manifests, on volumes as the kubelet would make them."""
    manifests = Manifests(MANIFESTS)
    folder = tmp_path_factory.mktemp("volumes")
    group = manifests.pod["securityContext"]["fsGroup"]
    for volume in (it["name"] for it in manifests.pod["volumes"]):
        (folder / volume).mkdir()
        if volume == "token":
            (folder / volume / "token").write_text(TOKEN)
            (folder / volume / "token").chmod(0o440)
            os.chown(folder / volume / "token", 0, group)
        elif volume == "settings":
            shutil.copy(MANIFESTS / "liveness.toml", folder / volume)
        os.chown(folder / volume, 0, group)
        (folder / volume).chmod(0o2777)
    try:
        started(podman, folder, manifests, NAME, "none")
        wait_until_healthy(podman)
        started(podman, folder, manifests, "gateway", f"container:{NAME}")
        yield podman
    finally:
        removed(podman, "gateway")
        removed(podman, NAME)


def started(
    podman: Podman, volumes: Path, manifests: Manifests, name: str, network: str
) -> None:
    """Start a container as the manifest has it."""
    spec = manifests.container(name)
    may = spec["securityContext"]
    assert (may["readOnlyRootFilesystem"], may["capabilities"]) == (
        True,
        {"drop": ["ALL"]},
    )
    known = environment(spec)
    program, *arguments = (expanded(word, known) for word in spec["command"])
    podman(
        *("run", "--detach", "--name", name, "--restart", "always", "--read-only"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--user", f"{may['runAsUser']}:{may['runAsGroup']}", "--network", network),
        *("--group-add", str(manifests.pod["securityContext"]["fsGroup"])),
        *(f"--env={key}={value}" for key, value in known.items()),
        *(
            f"--volume={volumes / it['name']}:{it['mountPath']}"
            + (":ro" if it.get("readOnly") else "")
            for it in spec["volumeMounts"]
        ),
        *("--entrypoint", program, spec["image"], *arguments),
    )


def asked(pod: Podman, path: str, *headers: str) -> str:
    """The status of the answer to a question from within the network of the pod."""
    command = ["curl", "--silent", "--output", "/dev/null", "--write-out"]
    command += ["%{http_code}", f"{URL}{path}"]
    command += [word for header in headers for word in ("--header", header)]
    return pod.within(process_of(pod)).ran(*command).stdout


def test_a_pod_is_asked_by_its_names_and_each_container_has_only_its_rights(
    pod: Podman,
) -> None:
    monitor = Manifests(MANIFESTS / "monitoring").one("PodMonitor")["spec"]
    probes = [
        it["httpGet"]
        for key, it in Manifests(MANIFESTS).container(NAME).items()
        if key.endswith("Probe")
    ]
    for probe in [*probes, *monitor["podMetricsEndpoints"]]:
        assert asked(pod, probe["path"]) == "200", probe
    bearer = f"Authorization: Bearer {TOKEN}"
    assert asked(pod, "/v1/users", "Host: chat-0.chat.prod") == "401"
    assert asked(pod, "/v1/users", "Host: chat-0.chat.prod", bearer) == "200"
    assert asked(pod, "/v1/users", "Host: chat-1.chat", bearer) == "421"
    mode = pod("exec", NAME, "stat", "-c", "%a %u", "/var/lib/liveness/state")
    assert re.fullmatch("2?700 9874", mode)
    touch = pod.ran("podman", "exec", "gateway", "touch", "/run/liveness/x", "/x")
    assert touch.stderr.count("Read-only file system") == 2
    refused = pod.ran("podman", "exec", "gateway", "liveness", "status")
    assert "access.admin" in refused.stderr

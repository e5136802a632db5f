"""A pod of the manifests on this machine, put together as a node would.

Volumes have the owners and modes that the kubelet gives them. The pod has a network of
its own; each container a root of its own, which is read-only and has nothing in it but
what an image would have and its volumes, and runs the manifest's very command, as its
user and groups, with no capability. What is not here: cgroups, seccomp, and namespaces
of processes.
"""

import ctypes
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Final, Self, TypeVar

import pytest

from tests.e2e.sidecar import SOON_S, Sidecar
from tests.manifests import (
    ROOT,
    Manifests,
    Object,
    container,
    environment,
    expanded,
    pod_of,
)

T = TypeVar("T")

ADDRESS: Final = "192.0.2.7"
NAMESPACE: Final = "prod"
TOKEN: Final = "a-token-of-a-test-only"
IMAGE: Final = "/opt/liveness"
CLONE_NEWNET: Final = 0x40000000
# Its network goes when the last process in it has ended: this one holds it. Loopback is
# down at first, and takes a second address, which stands for the pod's.
_HOLD: Final = f"""
import fcntl, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    address = struct.pack("16sHH4s8x", b"lo:0", 2, 0, socket.inet_aton({ADDRESS!r}))
    fcntl.ioctl(sock, 0x8916, address)  # SIOCSIFADDR
    for name in (b"lo", b"lo:0"):
        fcntl.ioctl(sock, 0x8914, struct.pack("16sH22x", name, 0x49))  # SIOCSIFFLAGS: up
print("up", flush=True)
sys.stdin.read()
"""


class Pod:
    """One pod, whose containers are started and ended one by one.

    Args:
        folder: An empty folder of its own.
        manifests: Those of the StatefulSet that it is of.
        claimed: Volumes that outlast it, by name: folders that are used as they are.
    """

    def __init__(
        self,
        folder: Path,
        manifests: Manifests,
        claimed: Mapping[str, Path] | None = None,
    ) -> None:
        self._folder = folder
        self._claimed = claimed or {}
        self._manifests = manifests
        self._spec = pod_of(manifests)
        self.group: int = self._spec["securityContext"]["fsGroup"]
        self.name = "chat-0"
        self._holder = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-I", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"up\n":
            pytest.fail("no network of its own: is unshare allowed?")
        folder.chmod(0o755)
        for volume in self._spec["volumes"]:
            self._make(volume)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._holder.communicate()

    # --- volumes --------------------------------------------------------------

    def volume(self, name: str) -> Path:
        """Where the node has a volume."""
        return self._claimed.get(name, self._folder / "volumes" / name)

    def _make(self, volume: Object) -> None:
        folder = self.volume(volume["name"])
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        if "configMap" in volume:
            files = self._manifests.files[volume["configMap"]["name"]]
            self._fill(folder, {name: it.read_bytes() for name, it in files.items()})
        elif "secret" in volume:
            mode = volume["secret"]["defaultMode"]
            self._fill(folder, {"token": TOKEN.encode() + b"\n"}, mode)
        # What fsGroup does: all that is in it is the group's.
        for path in (folder, *folder.rglob("*")):
            os.chown(path, -1, self.group, follow_symlinks=False)
        folder.chmod(0o2777)

    def _fill(self, folder: Path, files: dict[str, bytes], mode: int = 0o644) -> None:
        """As the kubelet writes them: links to links, so that all change at once."""
        dated = folder / "..2026_11_22"
        dated.mkdir(mode=0o755)
        (folder / "..data").symlink_to(dated.name)
        for name, data in files.items():
            (dated / name).write_bytes(data)
            (dated / name).chmod(mode)
            (folder / name).symlink_to(f"..data/{name}")

    # --- containers -----------------------------------------------------------

    def person(self, name: str) -> tuple[int, int]:
        """Who a container runs as: its user and its group."""
        runs_as = container(self._spec, name)["securityContext"]
        return runs_as["runAsUser"], runs_as["runAsGroup"]

    def environment(self, name: str) -> dict[str, str]:
        """All that is in a container's environment.

        The image has no compiler, so nobody is to find one here: where there is one, trio
        has it find a library as it is imported, by way of a file in /tmp. HOME is what
        runtimes give to a user that the image does not know.
        """
        one = container(self._spec, name)
        found = environment(one, self.name, NAMESPACE)
        return found | {"PATH": f"{IMAGE}/bin", "HOME": "/"}

    def command(self, name: str, *instead: str) -> list[str]:
        """The command that is a container's, or runs another in its place."""
        one = container(self._spec, name)
        known = self.environment(name)
        told = instead or [expanded(word, known) for word in one["command"]]
        script = [
            "theirs=$PATH PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            *self._root_of(one),
            f"PATH=$theirs exec {self._become(name)} {shlex.join(told)}",
        ]
        network = f"--net=/proc/{self._holder.pid}/ns/net"
        return [
            "/usr/bin/nsenter",
            network,
            "/usr/bin/unshare",
            "--mount",
            "/bin/sh",
            "-euc",
            "\n".join(script),
        ]

    def _root_of(self, one: Object) -> Iterator[str]:
        """A shell's lines that make a container's root."""
        root = self._folder / f"root-{one['name']}"
        root.mkdir(exist_ok=True)

        def bound(what: Path, at: Path, *, is_read_only: bool) -> Iterator[str]:
            place = shlex.quote(f"{root}{at}")
            yield f"mkdir -p {place}"
            yield f"mount --rbind {shlex.quote(str(what))} {place}"
            if is_read_only:
                yield f"mount -o remount,bind,ro {place}"

        yield f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(root))}"
        yield f"cd {shlex.quote(str(root))}"
        yield "mkdir etc && cp /etc/passwd /etc/group /etc/ld.so.cache etc"
        for name in ("bin", "lib", "lib64"):
            yield f"[ ! -L /{name} ] || cp -P /{name} ."
        # An image has the environment in one place; here it names its own, too.
        python = {Path(it).resolve() for it in (sys.base_prefix, sys.prefix)}
        whole = [path for path in python if not path.is_relative_to("/usr")]
        for path in (Path("/usr"), *whole, ROOT / "liveness"):
            yield from bound(path, path, is_read_only=True)
        yield from bound(Path(sys.prefix), Path(IMAGE), is_read_only=True)
        for name in ("proc", "dev"):
            yield from bound(Path("/", name), Path("/", name), is_read_only=False)
        for mount in one["volumeMounts"]:
            yield from bound(
                self.volume(mount["name"]),
                Path(mount["mountPath"]),
                is_read_only=mount.get("readOnly", False),
            )
        yield "mount -o remount,ro ."

    def _become(self, name: str) -> str:
        may = container(self._spec, name)["securityContext"]
        assert may["capabilities"] == {"drop": ["ALL"]}
        assert may["allowPrivilegeEscalation"] is False
        uid, gid = self.person(name)
        return (
            f"/usr/sbin/chroot . /usr/bin/setpriv --reuid={uid} --regid={gid} --groups={self.group} "
            "--no-new-privs --bounding-set=-all --inh-caps=-all"
        )

    @contextmanager
    def gateway(self) -> Iterator[subprocess.Popen[str]]:
        """Runs the gateway's container, until left."""
        with subprocess.Popen(
            self.command("gateway"),
            env=self.environment("gateway"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                assert "listens on" in process.stdout.readline()
                yield process
            finally:
                process.kill()

    # --- its network ------------------------------------------------------------

    def within(self, make: Callable[[], T]) -> T:
        """What *make* gives in the pod's network; a socket stays in it."""

        def entered() -> T:
            namespace = os.open(f"/proc/{self._holder.pid}/ns/net", os.O_RDONLY)
            with closing(os.fdopen(namespace)):
                libc = ctypes.CDLL(None, use_errno=True)
                assert libc.setns(namespace, CLONE_NEWNET) == 0, ctypes.get_errno()
            return make()

        with ThreadPoolExecutor(1) as thread:  # nothing else is ever done in it
            return thread.submit(entered).result()

    def connect(self, port: int) -> socket.socket:
        """A connection to the pod's address."""
        return self.within(lambda: socket.create_connection((ADDRESS, port), SOON_S))

    def get(
        self, path: str, *, port: int, host: str = ADDRESS, token: str = ""
    ) -> tuple[HTTPResponse, bytes]:
        """Asks at the pod's address, by an address or a name."""
        connection = HTTPConnection(host, port, timeout=SOON_S)
        connection.sock = self.connect(port)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        with closing(connection):
            connection.request("GET", path, headers=headers | {"connection": "close"})
            response = connection.getresponse()
            return response, response.read()


class Container(Sidecar):
    """The sidecar's container of a pod."""

    def __init__(self, pod: Pod) -> None:
        super().__init__(pod.volume("state"))
        self._pod = pod
        self.socket = pod.volume("socket") / "gateway.sock"
        self.admin = self.socket.with_name("admin.sock")

    def command(self) -> list[str]:
        """As the manifest has it."""
        return self._pod.command("liveness")

    def environment(self) -> dict[str, str]:
        """As the manifest has it, and nothing of ours."""
        return self._pod.environment("liveness")

"""A pod of the manifests on this machine, put together as a node would.

Volumes have the owners and modes that the kubelet gives them. The pod has a network of
its own; each container a root of its own, which is read-only and has nothing in it but
what an image would have and its volumes, and runs the manifest's very command, as its
user and groups, with no capability. What is not here: cgroups, seccomp, and namespaces
of processes.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Final, Self

from tests.helpers.manifests import (
    Manifests,
    Object,
    container,
    environment,
    expanded,
    pod_of,
)
from tests.helpers.tree import ROOT
from tests.system.host import mounted
from tests.system.image import (
    ADDRESS,
    PATH,
    Mount,
    begun,
    confined,
    entering,
    network,
    place,
    within,
)
from tests.system.sidecar import SOON_S, Sidecar

NAMESPACE: Final = "prod"
TOKEN: Final = "a-token-of-a-test-only"
IMAGE: Final = "/opt/liveness"


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
        folder.chmod(0o755)
        self._stack = ExitStack()
        self._network = self._stack.enter_context(network())
        # As on a node, volumes are on another device than the root of a container.
        memory = mounted(folder / "stage", "-t", "tmpfs", "tmpfs")
        self._stage = begun(self._stack.enter_context(memory))
        for volume in self._spec["volumes"]:
            self._make(volume)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

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
            data = {name: path.read_bytes() for name, path in files.items()}
            self._fill(folder, data)
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

        HOME is what runtimes give to a user that the image does not know.
        """
        one = container(self._spec, name)
        found = environment(one, self.name, NAMESPACE)
        return found | {"PATH": f"{IMAGE}/bin", "HOME": "/"}

    def command(self, name: str, *instead: str, **more: str) -> list[str]:
        """A container's command, or another in its place, with *more* environment."""
        spec = container(self._spec, name)
        may = spec["securityContext"]
        assert may["capabilities"] == {"drop": ["ALL"]}
        assert may["allowPrivilegeEscalation"] is False
        known = self.environment(name)
        command = instead or [expanded(word, known) for word in spec["command"]]
        # In the image the environment is in one place; here it names its own, too.
        python = {Path(prefix).resolve() for prefix in (sys.base_prefix, sys.prefix)}
        whole = [path for path in python if not path.is_relative_to("/usr")]
        mounts = [Mount(path, str(path)) for path in (*whole, ROOT / "liveness")]
        mounts.append(Mount(Path(sys.prefix), IMAGE))
        for it in spec["volumeMounts"]:
            is_writable = not it.get("readOnly", False)
            mounts.append(Mount(self.volume(it["name"]), it["mountPath"], is_writable))
        for mount in mounts:
            place(self._stage.root, mount)
        uid, gid = self.person(name)
        line = entering(
            self._stage,
            [*confined(f"{uid}:{gid}", self.group), *command],
            environ=known | more,
            mounts=mounts,
            is_alone=False,
        )
        return ["nsenter", f"--net=/proc/{self._network}/ns/net", "--", *line]

    @contextmanager
    def gateway(self) -> Iterator[subprocess.Popen[str]]:
        """Runs the gateway's container, until left."""
        with subprocess.Popen(
            self.command("gateway"),
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

    def connect(self, port: int) -> socket.socket:
        place = (ADDRESS, port)
        return within(self._network, lambda: socket.create_connection(place, SOON_S))

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
    def __init__(self, pod: Pod) -> None:
        super().__init__(pod.volume("state"))
        self._pod = pod
        self.socket = pod.volume("socket") / "gateway.sock"
        self.admin = self.socket.with_name("admin.sock")

    def command(self) -> list[str]:
        """As the manifest has it."""
        return self._pod.command("liveness")

    def environment(self) -> dict[str, str]:
        """Of what starts it: the command sets its own."""
        return {"PATH": PATH}

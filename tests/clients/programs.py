"""The clients in other languages: what builds them, and the commands of their programs."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from tests.helpers.needs import require
from tests.helpers.tree import ROOT

FLAGS: Final = "--sidecar {socket} --name {name} --port {port} --most 1000"
BUILD_S: Final = 300


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client in `proto/clients`, built in a copy of its folder, `{here}`."""

    folder: str
    source: str  # the library
    example: str  # the gateway
    needs: dict[str, str]  # programs, and the packages of Debian that have them
    builds: tuple[str, ...] = ()  # commands of a shell, run there
    gateway: str
    bench: str

    def command(self, program: str) -> str:
        """The command of one of its programs, which is built if it is not yet."""
        return program.replace("{here}", str(_built(self.folder)))


CLIENTS: Final = {client.folder: client for client in ()}


@cache
def _built(name: str) -> Path:
    """The folder of a client, where all is built; skips the test without the tools."""
    client = CLIENTS[name]
    for program, package in client.needs.items():
        require(program, package)
    here = Path(mkdtemp(prefix=f"liveness-{name}-"))
    shutil.copytree(ROOT / "proto/clients" / name, here, dirs_exist_ok=True)
    for build in client.builds:
        environ = os.environ | {"HOME": str(here), "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            build.replace("{here}", str(here)),
            shell=True,
            cwd=here,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=False,
        )
        assert done.returncode == 0, f"{build}\n{done.stdout}{done.stderr}"
    return here

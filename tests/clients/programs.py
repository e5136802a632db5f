"""The clients in other languages: what builds them, and the commands of their gateways."""

import atexit
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
    language: str
    needs: dict[str, str]  # programs, and the packages of Debian that have them
    builds: tuple[str, ...] = ()  # commands of a shell, run there
    gateway: str

    def gateway_command(self) -> str:
        """The command of its gateway, with placeholders; it is built if it is not yet."""
        return f"{self.gateway.replace('{here}', str(_built(self.folder)))} {FLAGS}"


CLIENTS: Final[dict[str, Client]] = {
    client.folder: client
    for client in (
        Client(
            folder="c",
            language="C",
            needs={"gcc": "gcc", "make": "make"},
            builds=("make BUILD={here}/build",),
            gateway="{here}/build/gateway",
        ),
        Client(
            folder="erlang",
            language="Erlang",
            needs={"erlc": "erlang-base"},
            builds=("mkdir ebin", "erlc -Wall -Werror -o ebin *.erl"),
            gateway="{here}/gateway",
        ),
        Client(
            folder="go",
            language="Go",
            needs={"go": "golang-go"},
            builds=("go vet ./...", "go build -o build/ ./cmd/..."),
            gateway="{here}/build/gateway",
        ),
        Client(
            folder="java",
            language="Java",
            needs={"javac": "openjdk-17-jdk-headless"},
            builds=(
                "javac --release 17 -Xlint:all -Werror -d build $(find src -name '*.java')",
            ),
            gateway="java -cp {here}/build liveness.example.Gateway",
        ),
        Client(
            folder="node",
            language="Node.js",
            needs={"node": "nodejs", "npm": "npm"},
            builds=("npm install --no-package-lock --no-audit --no-fund",),
            gateway="node {here}/gateway.js",
        ),
        Client(
            folder="rust",
            language="Rust",
            needs={"/usr/bin/cargo": "cargo", "/usr/bin/rustc": "rustc"},
            # Debian's, whatever others there are: the oldest that the client is for.
            builds=(
                "PATH=/usr/bin:$PATH cargo build --release --offline --examples "
                "--target-dir build",
            ),
            gateway="{here}/build/release/examples/gateway",
        ),
    )
}


@cache
def _built(name: str) -> Path:
    """The folder of a client, where all is built; skips the test without the tools."""
    client = CLIENTS[name]
    for program, package in client.needs.items():
        require(program, package)
    here = Path(mkdtemp(prefix=f"liveness-{name}-"))
    atexit.register(shutil.rmtree, here, ignore_errors=True)
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

"""compose.yml under podman-compose, in a network of its own.

All but Grafana, of which there is no package. Debian's Prometheus has the name of the image
that compose.yml says.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any, Final
from urllib.parse import quote

import pytest
import yaml

from tests.helpers.needs import require
from tests.helpers.tree import ROOT
from tests.machine.podman import IMAGE, Podman, replaced
from tests.system.image import fetched, network
from tests.system.sidecar import eventually

pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]

# Every container starts, users log in, and Prometheus asks every five seconds.
SEEN_S: Final = 60.0
SERVICES: Final = ("sidecar", "gateway", "users", "prometheus")
# As the official image has it: nobody's, and its program the entry point.
PROMETHEUS: Final = """
FROM {base}
RUN install --directory --owner 65534 --group 65534 /prometheus
USER 65534
ENTRYPOINT ["/usr/bin/prometheus"]
"""


@pytest.fixture
def net() -> Iterator[int]:
    with network() as holder:
        yield holder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what compose.yml names, with a token."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    shutil.copytree(ROOT / "grafana", tmp_path / "grafana")
    here = tmp_path / "deploy" / "container"
    token = here / "token"
    token.write_text(f"{token_hex()}\n")
    token.chmod(0o640)
    os.chown(token, 0, 9874)
    # Where one limit is given, Podman raises the others, which takes a capability that not
    # every root has.
    file = here / "compose.yml"
    limits = {"{nofile: 8192}": "{nofile: 8192, nproc: 8192}"}
    file.write_text(replaced(file.read_text(), limits))
    return here


def test_compose_starts_all_prometheus_sees_it_and_nothing_is_left(
    podman: Podman, net: int, folder: Path
) -> None:
    compose = require("podman-compose")
    services = yaml.safe_load((folder / "compose.yml").read_text())["services"]
    podman("tag", IMAGE, services["sidecar"]["image"])
    base = podman.load("prometheus-base", "prometheus", "wget")
    tag = services["prometheus"]["image"]
    text = PROMETHEUS.format(base=base)
    podman("build", "--quiet", "--network", "none", "--tag", tag, "-", input=text)
    inside = podman.within(net)

    def composed(*words: str) -> None:
        done = inside.ran(compose, *words, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr

    composed("up", "--detach", *SERVICES)
    try:
        eventually(lambda: len(online(net)) == 1, lambda: logs(podman), SEEN_S)
        (found,) = online(net)
        assert found["metric"]["instance"] == "sidecar:9874"
        assert fetched(net, "http://127.0.0.1:9874/v1/users")[0] == 401
    finally:
        composed("down", "--volumes")
    assert inside("ps", "--all", "--quiet") == ""
    named = ("--filter", "label=io.podman.compose.project")
    assert inside("volume", "ls", "--quiet", *named) == ""


def online(net: int) -> list[dict[str, Any]]:
    """What Prometheus has of a sidecar with nearly all of the simulated users."""
    query = quote('liveness_users_online{job="liveness"} > 40')
    url = f"http://127.0.0.1:9090/api/v1/query?query={query}"
    status, body = fetched(net, url)
    found: list[dict[str, Any]] = []
    return json.loads(body)["data"]["result"] if status == 200 else found


def logs(podman: Podman) -> str:
    """What all containers have printed."""
    every = podman("ps", "--all", "--quiet").split()
    done = [podman.ran("podman", "logs", "--tail", "20", one) for one in every]
    return "\n".join(one.stdout + one.stderr for one in done)

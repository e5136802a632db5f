"""A pod as `deploy/kubernetes` has it: its containers run, and may do what they are to."""

import http.client
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.manifests import (
    MANIFESTS,
    Manifests,
    container,
    durable,
    pod_of,
    settings,
)
from tests.helpers.needs import as_root
from tests.helpers.processes import Done, ran
from tests.system.client import SOON_S, Client
from tests.system.os_users import Person
from tests.system.pod import IMAGE, TOKEN, Container, Pod
from tests.system.sidecar import eventually

pytestmark = as_root

OURS = Manifests(MANIFESTS)
PORT = settings(OURS).http.port
CHAT = container(pod_of(OURS), "gateway")["ports"][0]["containerPort"]


@contextmanager
def started(
    folder: Path, manifests: Manifests, **claimed: Path
) -> Iterator[tuple[Pod, Container]]:
    """A pod in a new folder, and its sidecar's container, ready."""
    folder.mkdir()
    with Pod(folder, manifests, claimed) as pod, Container(pod) as sidecar:
        sidecar.start()
        yield pod, sidecar


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    """One for all tests that end none of its containers."""
    with Pod(tmp_path_factory.mktemp("p"), OURS) as made:
        yield made


@pytest.fixture(scope="module")
def sidecar(pod: Pod) -> Iterator[Container]:
    """Its sidecar's container, ready."""
    with Container(pod) as made:
        made.start()
        yield made


def within(pod: Pod, *words: str) -> Done:
    """A `liveness` command in the sidecar's container."""
    command = pod.command("liveness", f"{IMAGE}/bin/liveness", *words)
    return ran(*command, timeout=60)


def users(pod: Pod) -> list[str]:
    """The users online, as another pod reads them."""
    response, body = pod.get("/v1/users", port=PORT, token=TOKEN)
    assert response.status == 200
    lines = [json.loads(line) for line in body.splitlines()]
    assert "uid" not in lines[-1]
    return [line["uid"] for line in lines[:-1]]


def logged_in(pod: Pod, name: str) -> socket.socket:
    connection = pod.connect(CHAT)
    connection.sendall(json.dumps({"login": name}).encode() + b"\n")
    with connection.makefile() as lines:
        assert any("joined" in line for line in lines)
    return connection


def first_event(pod: Pod, last: str = "") -> dict[str, Any]:
    """The first event of the feed, for a reader that goes on behind *last*."""
    connection = http.client.HTTPConnection("chat-0.chat", PORT, timeout=SOON_S)
    connection.sock = pod.connect(PORT)
    headers = {"authorization": f"Bearer {TOKEN}"}
    headers |= {"last-event-id": last} if last else {}
    with closing(connection):
        connection.request("GET", "/v1/feed", headers=headers)
        with connection.getresponse() as response:
            data = next(line[6:] for line in response if line.startswith(b"data: "))
            found: dict[str, Any] = json.loads(data)
            return found


def test_probes_prometheus_and_other_pods_get_in(pod: Pod, sidecar: Container) -> None:
    probes = [
        it["httpGet"]
        for name, it in container(pod_of(OURS), "liveness").items()
        if name.endswith("Probe")
    ]
    assert len(probes) == 3
    monitor = Manifests(MANIFESTS / "monitoring").one("PodMonitor")
    for asked in [*probes, *monitor["spec"]["podMetricsEndpoints"]]:
        response, _ = pod.get(asked["path"], port=PORT)
        assert response.status == 200, asked
    names = ("chat-0.chat", "chat-0.chat.prod", "chat-0.chat.prod.svc.cluster.local")
    for host in (*names, "localhost"):
        assert pod.get("/v1/users", port=PORT, host=host)[0].status == 401
        told = pod.get("/v1/users", port=PORT, host=host, token=TOKEN)
        assert told[0].status == 200
    assert pod.get("/v1/users", port=PORT, host="chat-1.chat")[0].status == 421


def test_each_container_has_the_rights_of_its_user(
    pod: Pod, sidecar: Container
) -> None:
    own, gateway = (pod.person(name) for name in ("liveness", "gateway"))
    with Client(Person(*gateway, (pod.group,)).connect(sidecar.socket)) as client:
        client.hello("gw-1")
    # Every container is in the group that the socket is open to.
    with Client(Person(20_000, 20_000, (pod.group,)).connect(sidecar.socket)) as other:
        assert other.refusal()["code"] == "not-allowed"
    with pytest.raises(PermissionError):
        Person(20_000, 20_000).connect(sidecar.socket)
    answers = {}
    for person in (own, gateway):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = Person(*person, (pod.group,)).connect(sidecar.admin)
        with closing(connection):
            connection.request("GET", "/v1/gateways")
            answers[person] = connection.getresponse().status
    assert answers == {own: 200, gateway: 403}


def test_only_the_sidecar_has_its_state(pod: Pod, sidecar: Container) -> None:
    state = pod.volume("state") / "state"
    assert stat.S_IMODE(state.stat().st_mode) & 0o777 == 0o700
    assert state.stat().st_uid == pod.person("liveness")[0]
    status = Path(f"/proc/{sidecar.pid}/status").read_text()
    assert "CapEff:\t0000000000000000\n" in status
    assert "NoNewPrivs:\t1\n" in status
    for name, path in {"liveness": "/x", "gateway": "/run/liveness/x"}.items():
        done = ran(*pod.command(name, "/usr/bin/touch", path))
        assert "Read-only file system" in done.stderr


def test_the_command_line_finds_all_by_itself(pod: Pod, sidecar: Container) -> None:
    done = within(pod, "status", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_gateway_reports_and_the_pod_stops_in_order(tmp_path: Path) -> None:
    with started(tmp_path / "1", OURS) as (pod, sidecar):
        with pod.gateway() as gateway, logged_in(pod, "ada"):
            eventually(lambda: users(pod) == ["ada"])
            gateway.terminate()
            assert gateway.wait(SOON_S) == 0
        assert sidecar.stop() == 0
        assert within(pod, "status", "--quiet").returncode == 1
        ends = [(one.kind, one.reason) for one in sidecar.log()]
    assert ends == [("online", "login"), ("offline", "logout")]


def test_an_emptydir_outlasts_a_container_but_not_the_pod(tmp_path: Path) -> None:
    with started(tmp_path / "1", OURS) as (pod, sidecar):
        with pod.gateway(), logged_in(pod, "ada"):
            eventually(lambda: users(pod) == ["ada"])
            before = first_event(pod)
            sidecar.kill()
            sidecar.start()
            assert users(pod) == ["ada"]
            again = first_event(pod, f"{before['log']}:{before['seq']}")
            assert (again["log"], again["new"]) == (before["log"], False)
        sidecar.kill()
    with started(tmp_path / "2", OURS) as (next_pod, _):
        assert users(next_pod) == []
        other = first_event(next_pod, f"{before['log']}:{before['seq']}")
        assert (other["log"] != before["log"], other["new"]) == (True, True)


def test_a_claimed_volume_outlasts_the_pod(tmp_path: Path) -> None:
    manifests = Manifests(durable(tmp_path))
    disk = tmp_path / "disk"
    disk.mkdir()
    # As a node leaves the root of a filesystem, for fsGroup.
    os.chown(disk, 0, pod_of(manifests)["securityContext"]["fsGroup"])
    disk.chmod(0o2775)
    with (
        started(tmp_path / "1", manifests, state=disk) as (pod, sidecar),
        pod.gateway(),
        logged_in(pod, "ada"),
    ):
        eventually(lambda: users(pod) == ["ada"])
        before = first_event(pod)
        sidecar.kill()
    with started(tmp_path / "2", manifests, state=disk) as (pod, sidecar):
        again = first_event(pod, f"{before['log']}:{before['seq']}")
        # The folder of the socket went with the pod: the log goes on with a new id.
        assert (again["log"] != before["log"], again["new"]) == (True, True)
        assert again["seq"] == before["seq"]
        assert users(pod) == ["ada"]
        with pod.gateway():
            eventually(lambda: users(pod) == [])
        assert [one.reason for one in sidecar.log()] == ["login", "gateway_lost"]


def test_a_services_variables_would_keep_it_from_starting(pod: Pod) -> None:
    name = "LIVENESS_SERVICE_HOST"
    done = ran(*pod.command("liveness", **{name: "192.0.2.1"}), timeout=60)
    assert done.returncode == 78
    assert f"there is no setting {name}" in done.stderr

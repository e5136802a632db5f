"""The manifests are of the sidecar that there is: what they run, set, open and ask for.

That a pod of them works is shown in `tests/machine/test_podman.py`; that Kubernetes knows
what is in them is asked by `make check`.
"""

from typing import Final

import pytest
import yaml

from liveness.cli.backup import ROOM, SPARE_BYTES
from liveness.config.settings import Config
from liveness.core.wire.frames import MAX_KEY_BYTES, MAX_TEXT_BYTES
from liveness.core.wire.uids import MAX_NAME_BYTES
from liveness.lab.bench.floors import STOP_S
from liveness.service.storage.database import WAL_BYTES
from tests.helpers.manifests import MANIFESTS, Manifests, named, quantity
from tests.helpers.tree import ROOT

OURS: Final = Manifests(MANIFESTS)
DURABLE: Final = Manifests(MANIFESTS, "durable")
CONFIG: Final = OURS.settings()
SIDECAR: Final = OURS.container("liveness")
GATEWAY: Final = OURS.container("gateway")
# Lists of everyone at a time (docs/limits.md), and at most so much for a user.
LISTS: Final = 4
LINE_BYTES: Final = 200


# --- the gateway and its sidecar ------------------------------------------------------


def test_the_sidecar_outlasts_the_gateway_and_no_quota_stops_it() -> None:
    assert SIDECAR in OURS.pod["initContainers"]
    assert SIDECAR["restartPolicy"] == "Always"
    assert SIDECAR["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert "cpu" not in SIDECAR["resources"]["limits"]
    assert OURS.pod["terminationGracePeriodSeconds"] >= 2 * STOP_S
    assert OURS.pod["enableServiceLinks"] is False  # its variables are no settings


@pytest.mark.parametrize("container", [SIDECAR, GATEWAY], ids=["sidecar", "gateway"])
def test_a_container_may_do_no_more_than_it_must(container: dict[str, object]) -> None:
    profile = {"type": "RuntimeDefault"}
    assert OURS.pod["securityContext"].items() >= {
        ("runAsNonRoot", True),
        ("fsGroup", SIDECAR["securityContext"]["runAsGroup"]),
    }
    assert OURS.pod["securityContext"]["seccompProfile"] == profile
    may = container["securityContext"]
    assert isinstance(may, dict)
    assert may["allowPrivilegeEscalation"] is False
    assert may["readOnlyRootFilesystem"] is True
    assert may["capabilities"] == {"drop": ["ALL"]}


def test_just_the_gateways_user_may_report() -> None:
    gateway, sidecar = (it["securityContext"]["runAsUser"] for it in (GATEWAY, SIDECAR))
    assert gateway != sidecar
    assert CONFIG.access.gateways == str(gateway)
    rights = (CONFIG.access.watchers, CONFIG.access.everyone, CONFIG.access.admin)
    assert set(rights) == {"own"}
    assert [it["name"] for it in GATEWAY["volumeMounts"]] == ["socket"]
    assert GATEWAY["volumeMounts"][0]["readOnly"] is True
    token = named(OURS.pod["volumes"], "token")["secret"]
    assert token["defaultMode"] == 0o440


def test_the_pod_is_asked_and_found_by_the_names_that_it_knows() -> None:
    containers = {"liveness": SIDECAR, "chat": GATEWAY}
    ports = {
        name: named(one["ports"], name)["containerPort"]
        for name, one in containers.items()
    }
    assert ports["liveness"] == CONFIG.http.port
    assert not CONFIG.http.is_on_loopback
    for name, container in containers.items():
        for probe in (it for key, it in container.items() if key.endswith("Probe")):
            assert (probe.get("httpGet") or probe["tcpSocket"])["port"] == name
    names, users = (OURS.one("Service", it)["spec"] for it in ("chat", "chat-users"))
    assert names["ports"] == [{"name": "liveness", "port": ports["liveness"]}]
    assert users["ports"] == [{"name": "chat", "port": ports["chat"]}]
    # A pod that is not ready keeps its name, and gets no users.
    assert (names["clusterIP"], names["publishNotReadyAddresses"]) == ("None", True)
    assert "publishNotReadyAddresses" not in users
    service = OURS.one("StatefulSet")["spec"]["serviceName"]
    assert service == OURS.one("Service", "chat")["metadata"]["name"]
    for domain in ("", ".prod", ".prod.svc", ".prod.svc.cluster.local"):
        assert f"chat-0.{service}{domain}" in CONFIG.http.names


def test_users_come_in_readers_ask_and_nothing_leaves() -> None:
    policy = OURS.one("NetworkPolicy")["spec"]
    assert (policy["policyTypes"], policy["egress"]) == (["Ingress", "Egress"], [])
    users, readers = policy["ingress"]
    assert users == {"ports": [{"port": GATEWAY["ports"][0]["containerPort"]}]}
    assert readers["ports"] == [{"port": CONFIG.http.port}]
    assert readers["from"]


# --- resources --------------------------------------------------------------------------


def state_bytes(config: Config) -> float:
    """The most disk space of the state: log, timers and temporary files."""
    # A timer's payload and last message; its names, which are in an index too.
    timer = 2 * MAX_TEXT_BYTES + 2 * (2 * MAX_KEY_BYTES + MAX_NAME_BYTES) + 200
    timers = (config.timers.max_live + config.timers.max_ended) * timer
    # The log is trimmed in steps, and a WAL cut back after a burst.
    log = 1.5 * config.state.retention_bytes + 4 * WAL_BYTES
    return log + timers + LISTS * config.limits.max_users * LINE_BYTES


def test_volumes_hold_the_largest_state_and_its_backup() -> None:
    largest = state_bytes(CONFIG)
    (claim,) = DURABLE.one("StatefulSet")["spec"]["volumeClaimTemplates"]
    state, backups = (
        named(OURS.pod["volumes"], it)["emptyDir"]["sizeLimit"]
        for it in ("state", "backups")
    )
    assert quantity(state) >= largest
    assert quantity(claim["spec"]["resources"]["requests"]["storage"]) >= largest
    assert quantity(backups) >= ROOM * largest + SPARE_BYTES


# --- for a Prometheus operator --------------------------------------------------------

MONITORING: Final = Manifests(MANIFESTS / "monitoring")


@pytest.mark.parametrize("name", ["recording", "alerts"])
def test_the_operators_rules_are_those_of_prometheus(name: str) -> None:
    rule = MONITORING.one("PrometheusRule", f"liveness-{name}")
    file = ROOT / f"deploy/prometheus/{name}.yml"
    assert rule["spec"] == yaml.safe_load(file.read_text()), "run make rules"

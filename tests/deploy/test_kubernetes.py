"""The manifests are held against the product: what they run, set, open and ask for.

That a pod of them really works is shown in `tests/system/test_pod.py`; that Kubernetes knows
what is in them is asked by `make check`.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from liveness import __version__
from tests.helpers.manifests import (
    MANIFESTS,
    TIMER_BYTES,
    Manifests,
    Object,
    by_kubectl,
    container,
    durable,
    faults_of,
    measured,
    pod_of,
    settings,
)
from tests.helpers.processes import promtool, ran, succeeded
from tests.helpers.tree import ROOT

RULES: Final = ROOT / "deploy" / "prometheus"
Renderer = Callable[[Path], Manifests]
# Where there is a kubectl, it has to make the same of the folders.
KUBECTL: Final[list[Renderer]] = [by_kubectl] if shutil.which("kubectl") else []
RENDERERS: Final[list[Renderer]] = [Manifests, *KUBECTL]


# --- the gateway and its sidecar ------------------------------------------------------


@pytest.mark.parametrize("rendered", RENDERERS)
def test_nothing_is_wrong_with_the_manifests(rendered: Renderer) -> None:
    assert faults_of(rendered(MANIFESTS)) == []


@pytest.mark.parametrize("rendered", RENDERERS)
def test_the_durable_manifests_have_no_fault(
    rendered: Renderer, tmp_path: Path
) -> None:
    manifests = rendered(durable(tmp_path))
    assert faults_of(manifests) == []
    assert "state" not in {one["name"] for one in pod_of(manifests)["volumes"]}
    assert sidecar(manifests)["resources"]["requests"].keys() == {"cpu", "memory"}


def test_kubernetes_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    program = Path(sys.prefix, "bin", "kubernetes-validate")
    if not program.exists():
        pytest.skip("kubernetes-validate is missing: make setup")
    text = (MANIFESTS / "gateway.yaml").read_text()
    wrong = tmp_path / "gateway.yaml"
    wrong.write_text(text.replace("failureThreshold: 600", "failureTreshold: 600"))
    check = (program, "--strict", "--quiet", "-k", "1.29")
    assert ran(*check, MANIFESTS / "gateway.yaml").returncode == 0
    refused = ran(*check, wrong)
    assert refused.returncode == 1
    assert "'failureTreshold' was unexpected" in refused.stdout + refused.stderr


def sidecar(manifests: Manifests) -> Object:
    return container(pod_of(manifests), "liveness")


def gateway(manifests: Manifests) -> Object:
    return container(pod_of(manifests), "gateway")


ABSENT: Final = object()
# By a word of what is said about it: a mistake, as a place and what is put there. `+` adds
# to a list; a thing in a list goes by its name or number.
WRONG: Final[dict[str, tuple[str, Any]]] = {
    "would not start": ("sidecar/command/+", "--sokcet=/x"),
    "no setting": ("sidecar/env/+", {"name": "LIVENESS_TIMEOUT", "value": "30"}),
    "variables": ("pod/enableServiceLinks", True),
    "native": ("sidecar/restartPolicy", "Never"),
    "wait": ("sidecar/startupProbe", ABSENT),
    "quota": ("sidecar/resources/limits/cpu", "1"),
    "no time": ("pod/terminationGracePeriodSeconds", 5),
    "version": ("gateway/image", "localhost/liveness:latest"),
    "what is mounted": ("gateway/volumeMounts/0/name", "sockets"),
    "make its socket": ("sidecar/volumeMounts/2/mountPath", "/x"),
    "elsewhere": ("gateway/env/0/value", "/run/gateway.sock"),
    "in the place": ("gateway/volumeMounts/0/readOnly", ABSENT),
    "folder of": ("sidecar/env/1/value", "/var/lib/liveness"),
    "more than the socket": (
        "gateway/volumeMounts/+",
        {"name": "state", "mountPath": "/var/lib/liveness"},
    ),
    "where the Secret is": ("sidecar/volumeMounts/1/mountPath", "/run/secrets"),
    "open to others": ("pod/volumes/token/secret/defaultMode", 0o444),
    "the pod may do": ("pod/securityContext/runAsNonRoot", False),
    "gateway may do": ("gateway/securityContext/allowPrivilegeEscalation", True),
    "sidecar's user": ("gateway/securityContext/runAsUser", 9874),
    "just the gateway's": ("gateway/securityContext/runAsUser", 10002),
    "pod's port": ("sidecar/ports/0/containerPort", 9784),
    "no port of it": ("sidecar/livenessProbe/httpGet/port", "chat"),
    "Services' ports": ("Service chat-users/ports/0/port", 9001),
    "loses its name": ("Service chat/publishNotReadyAddresses", False),
    "that is not ready loses": ("Service chat/clusterIP", ABSENT),
    "users are sent": ("Service chat-users/publishNotReadyAddresses", True),
    "no node is drained": (
        "PodDisruptionBudget/unhealthyPodEvictionPolicy",
        "IfHealthyBudget",
    ),
    "other pods": ("Service chat-users/selector/app", "x"),
    "chooses other": ("NetworkPolicy/podSelector/matchLabels/app", "x"),
    "something chooses": (
        "pod/topologySpreadConstraints/1/labelSelector/matchLabels/app",
        "x",
    ),
    "have no names": ("StatefulSet/serviceName", "x"),
    "called chat-0.chat.prod": (
        "sidecar/env/4/value",
        lambda hosts: hosts.replace(" $(POD_NAME).chat.$(POD_NAMESPACE),", ""),
    ),
    "asked for is under 1.25": ("sidecar/resources/requests/memory", "128Mi"),
    "limit of memory": ("sidecar/resources/limits/memory", "256Mi"),
    "processor asked for": ("sidecar/resources/requests/cpu", "100m"),
    "a start may take": ("sidecar/startupProbe/failureThreshold", 30),
    "may become": ("pod/volumes/state/emptyDir/sizeLimit", "2Gi"),
    "a backup may not": ("pod/volumes/backups/emptyDir/sizeLimit", "6Gi"),
    "begin connections": ("NetworkPolicy/egress/+", {}),
    "is open to everybody": ("NetworkPolicy/ingress/1/from", ABSENT),
    "no reader": ("NetworkPolicy/ingress/1/ports/0/port", 9000),
}


def change(manifests: Manifests, place: str, value: Any) -> None:
    start, *keys, last = place.split("/")
    found: Any = pod_of(manifests)
    if start in ("sidecar", "gateway"):
        found = {"sidecar": sidecar, "gateway": gateway}[start](manifests)
    elif start != "pod":
        found = manifests.one(*start.split())["spec"]
    for key in keys:
        if isinstance(found, list) and not key.isdigit():
            (found,) = (one for one in found if one["name"] == key)
        else:
            found = found[int(key) if isinstance(found, list) else key]
    if last == "+":
        found.append(value)
    elif value is ABSENT:
        del found[last]
    else:
        found[last] = value(found[last]) if callable(value) else value


@pytest.mark.parametrize("said", WRONG)
def test_a_mistake_is_found(said: str) -> None:
    manifests = Manifests(MANIFESTS)
    change(manifests, *WRONG[said])
    faults = faults_of(manifests)
    assert any(said in fault for fault in faults), faults


def test_a_setting_that_does_not_exist_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "kubernetes"
    shutil.copytree(MANIFESTS, folder)
    with (folder / "liveness.toml").open("a") as file:
        file.write("max_user = 7\n")
    (fault,) = faults_of(Manifests(folder))
    assert "there is no setting limits.max_user" in fault


def test_an_image_from_elsewhere_replaces_the_local_one(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is missing")
    folder = tmp_path / "kubernetes"
    shutil.copytree(MANIFESTS, folder)
    file = folder / "kustomization.yaml"
    hint = re.compile("^#images:\n(?:#  .*\n)+", re.M)
    text, count = hint.subn(lambda it: it[0].replace("#", ""), file.read_text())
    assert count == 1
    file.write_text(text)
    rendered = succeeded(ran("kubectl", "kustomize", folder))
    images = re.findall(r" image: (\S+)", rendered)
    assert images == [f"registry.example.com/liveness:{__version__}"] * 2


def test_no_file_is_left_out() -> None:
    named = set[Path]()
    for folder in (MANIFESTS, MANIFESTS / "monitoring", MANIFESTS / "durable"):
        file = folder / "kustomization.yaml"
        said = yaml.safe_load(file.read_text())
        names = said.get("resources", []) + [
            name for one in said.get("configMapGenerator", []) for name in one["files"]
        ]
        named |= {file, *(folder / name for name in names)}
    assert named == {path for path in MANIFESTS.rglob("*") if path.is_file()}


def test_the_manual_has_the_figures_that_were_measured() -> None:
    text = (ROOT / "docs/deployment.md").read_text()
    told = text.split("\n### Resources\n")[1].split("\n### ")[0]
    config = settings(Manifests(MANIFESTS))
    online = measured("million", "logins", "server memory with all online")
    storm = measured("million", "silence", "memory growth")
    timers = config.timers.max_live * TIMER_BYTES / 1e6
    steady = measured(
        "hundred-thousand", "steady", "server CPU with 50 offlines a second"
    )
    more = f"{storm:.0f}" if storm >= 0.5 else "no"
    assert f"online take {online:.0f} MB, {more} more" in told
    assert f"up to {timers:.0f}." in told
    assert f"take {steady:.1f} % of a core" in told
    asked = sidecar(Manifests(MANIFESTS))["resources"]
    memory = [asked[which]["memory"].replace("Mi", " MiB") for which in asked]
    assert [*asked] == ["requests", "limits"]
    assert f"| memory | {memory[0]} | {memory[1]} |" in told
    assert f"| processor | {asked['requests']['cpu']} | none |" in told


def test_no_token_is_in_the_repository() -> None:
    kinds = {one["kind"] for one in Manifests(MANIFESTS).objects}
    known = {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    assert kinds == known


# --- for a Prometheus operator --------------------------------------------------------


@pytest.fixture(scope="module")
def monitoring() -> Manifests:
    return RENDERERS[-1](MANIFESTS / "monitoring")


@pytest.mark.parametrize("name", ["recording", "alerts"])
def test_the_operators_rules_are_those_of_prometheus(
    monitoring: Manifests, name: str
) -> None:
    rule = monitoring.one("PrometheusRule", f"liveness-{name}")
    assert rule.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert rule["apiVersion"] == "monitoring.coreos.com/v1"
    expected = yaml.safe_load((RULES / f"{name}.yml").read_text())
    assert rule["spec"] == expected, "run make rules"


def test_each_sidecar_is_scraped(monitoring: Manifests, tmp_path: Path) -> None:
    monitor = monitoring.one("PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"].keys() == {"selector", "podMetricsEndpoints"}
    stateful = Manifests(MANIFESTS).one("StatefulSet")["spec"]["template"]
    labels = stateful["metadata"]["labels"].items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    policy = monitoring.one("NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels
    assert policy["policyTypes"] == ["Ingress"]
    (allowed,) = policy["ingress"]
    assert allowed["ports"] == [{"port": settings(Manifests(MANIFESTS)).http.port}]
    assert allowed["from"] != []
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint.keys() == {"port", "path", "interval", "relabelings"}
    assert endpoint["port"] in {
        one["name"] for one in sidecar(Manifests(MANIFESTS))["ports"]
    }
    # As the operator writes it into the configuration of Prometheus.
    relabelings = [
        {re.sub("([A-Z])", r"_\1", key).lower(): it for key, it in one.items()}
        for one in endpoint["relabelings"]
    ]
    found = {
        "__meta_kubernetes_namespace": "prod",
        "__meta_kubernetes_pod_name": "chat-0",
    }
    config = {
        "scrape_configs": [
            {
                "job_name": "podMonitor/prod/liveness/0",
                "metrics_path": endpoint["path"],
                "scrape_interval": endpoint["interval"],
                "relabel_configs": relabelings,
                "static_configs": [{"targets": ["192.0.2.7:9874"], "labels": found}],
            }
        ]
    }
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    job = "podMonitor/prod/liveness/0"
    told = promtool("check", "service-discovery", "--timeout=1s", str(file), job)
    (target,) = json.loads(told)
    assert target["labels"] == {
        "__address__": "192.0.2.7:9874",
        "__metrics_path__": "/metrics",
        "__scheme__": "http",
        "__scrape_interval__": "15s",
        "__scrape_timeout__": "10s",
        "instance": "prod/chat-0",
        "job": "liveness",
    }

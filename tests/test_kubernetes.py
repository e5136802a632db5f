"""The manifests are held against the product: what they run, set, open and ask for.

That a pod of them really works is shown in `tests/e2e/test_pod.py`; that Kubernetes knows
what is in them is asked by `make check`.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from liveness import __version__
from tests.manifests import (
    MANIFESTS,
    ROOT,
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
    volume_of,
)

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
def test_nothing_is_wrong_with_a_state_that_outlasts_the_pod(
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
    told = [
        subprocess.run(
            [program, "--strict", "--quiet", "-k", "1.29", file],
            capture_output=True,
            text=True,
            check=False,
        )
        for file in (MANIFESTS / "gateway.yaml", wrong)
    ]
    assert [one.returncode for one in told] == [0, 1], told
    assert "'failureTreshold' was unexpected" in told[1].stdout + told[1].stderr


def sidecar(manifests: Manifests) -> Object:
    return container(pod_of(manifests), "liveness")


def gateway(manifests: Manifests) -> Object:
    return container(pod_of(manifests), "gateway")


def service(manifests: Manifests, name: str) -> Object:
    found: Object = manifests.one("Service", name)["spec"]
    return found


Change = Callable[[Manifests], Any]
# What somebody may get wrong, and a word of what is said about it.
WRONG: Final[dict[str, Change]] = {
    "would not start": lambda it: sidecar(it)["command"].append("--sokcet=/x"),
    "no setting": lambda it: sidecar(it)["env"].append(
        {"name": "LIVENESS_TIMEOUT", "value": "30"}
    ),
    "variables": lambda it: pod_of(it).update(enableServiceLinks=True),
    "native": lambda it: sidecar(it).update(restartPolicy="Never"),
    "wait": lambda it: sidecar(it).pop("startupProbe"),
    "quota": lambda it: sidecar(it)["resources"]["limits"].update(cpu="1"),
    "no time": lambda it: pod_of(it).update(terminationGracePeriodSeconds=5),
    "version": lambda it: gateway(it).update(image="localhost/liveness:latest"),
    "what is mounted": lambda it: gateway(it)["volumeMounts"][0].update(name="sockets"),
    "make its socket": lambda it: sidecar(it)["volumeMounts"][2].update(mountPath="/x"),
    "elsewhere": lambda it: gateway(it)["env"][0].update(value="/run/gateway.sock"),
    "in the place": lambda it: gateway(it)["volumeMounts"][0].pop("readOnly"),
    "folder of": lambda it: sidecar(it)["env"][1].update(value="/var/lib/liveness"),
    "more than the socket": lambda it: gateway(it)["volumeMounts"].append(
        {"name": "state", "mountPath": "/var/lib/liveness"}
    ),
    "where the Secret is": lambda it: sidecar(it)["volumeMounts"][1].update(
        mountPath="/run/secrets"
    ),
    "open to others": lambda it: volume_of(pod_of(it), "token")["secret"].update(
        defaultMode=0o444
    ),
    "the pod may do": lambda it: pod_of(it)["securityContext"].update(
        runAsNonRoot=False
    ),
    "gateway may do": lambda it: gateway(it)["securityContext"].update(
        allowPrivilegeEscalation=True
    ),
    "sidecar's user": lambda it: gateway(it)["securityContext"].update(runAsUser=9874),
    "just the gateway's": lambda it: gateway(it)["securityContext"].update(
        runAsUser=10002
    ),
    "pod's port": lambda it: sidecar(it)["ports"][0].update(containerPort=9784),
    "no port of it": lambda it: sidecar(it)["livenessProbe"]["httpGet"].update(
        port="chat"
    ),
    "Services' ports": lambda it: service(it, "chat-users")["ports"][0].update(
        port=9001
    ),
    "loses its name": lambda it: service(it, "chat").update(
        publishNotReadyAddresses=False
    ),
    "that is not ready loses": lambda it: service(it, "chat").pop("clusterIP"),
    "users are sent": lambda it: service(it, "chat-users").update(
        publishNotReadyAddresses=True
    ),
    "no node is drained": lambda it: it.one("PodDisruptionBudget")["spec"].update(
        unhealthyPodEvictionPolicy="IfHealthyBudget"
    ),
    "other pods": lambda it: service(it, "chat-users")["selector"].update(app="x"),
    "have no names": lambda it: it.one("StatefulSet")["spec"].update(serviceName="x"),
    "called chat-0.chat.prod": lambda it: sidecar(it)["env"][4].update(
        value=sidecar(it)["env"][4]["value"].replace(
            " $(POD_NAME).chat.$(POD_NAMESPACE),", ""
        )
    ),
    "asked for is under 1.25": lambda it: sidecar(it)["resources"]["requests"].update(
        memory="128Mi"
    ),
    "limit of memory": lambda it: sidecar(it)["resources"]["limits"].update(
        memory="256Mi"
    ),
    "processor asked for": lambda it: sidecar(it)["resources"]["requests"].update(
        cpu="100m"
    ),
    "a start may take": lambda it: sidecar(it)["startupProbe"].update(
        failureThreshold=30
    ),
    "may become": lambda it: volume_of(pod_of(it), "state")["emptyDir"].update(
        sizeLimit="2Gi"
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_noticed(said: str) -> None:
    manifests = Manifests(MANIFESTS)
    WRONG[said](manifests)
    faults = faults_of(manifests)
    assert any(said in fault for fault in faults), faults


def test_a_setting_that_is_none_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "kubernetes"
    shutil.copytree(MANIFESTS, folder)
    with (folder / "liveness.toml").open("a") as file:
        file.write("max_user = 7\n")
    (fault,) = faults_of(Manifests(folder))
    assert "there is no setting limits.max_user" in fault


def test_an_image_from_elsewhere_takes_the_place_of_the_one_named_here(
    tmp_path: Path,
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is missing")
    folder = tmp_path / "kubernetes"
    shutil.copytree(MANIFESTS, folder)
    file = folder / "kustomization.yaml"
    hint = re.compile("^#images:\n(?:#  .*\n)+", re.M)
    text, count = hint.subn(lambda it: it[0].replace("#", ""), file.read_text())
    assert count == 1
    file.write_text(text)
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    images = re.findall(r" image: (\S+)", done.stdout)
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
    assert f"online take {online:.0f} MB, {storm:.0f} more" in told
    assert f"up to {timers:.0f}." in told
    assert f"take {steady:.1f} % of a core" in told
    asked = sidecar(Manifests(MANIFESTS))["resources"]
    memory = [asked[which]["memory"].replace("Mi", " MiB") for which in asked]
    assert [*asked] == ["requests", "limits"]
    assert f"| memory | {memory[0]} | {memory[1]} |" in told
    assert f"| processor | {asked['requests']['cpu']} | none |" in told


def test_no_token_is_in_the_repository() -> None:
    kinds = {one["kind"] for one in Manifests(MANIFESTS).objects}
    assert kinds == {"StatefulSet", "Service", "PodDisruptionBudget"}


# --- for a Prometheus operator --------------------------------------------------------


@pytest.fixture(scope="module")
def monitoring() -> Manifests:
    return RENDERERS[-1](MANIFESTS / "monitoring")


def promtool(*arguments: str) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is missing: apt install prometheus")
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["recording", "alerts"])
def test_the_operators_rules_are_those_of_prometheus(
    monitoring: Manifests, name: str, tmp_path: Path
) -> None:
    rule = monitoring.one("PrometheusRule", f"liveness-{name}")
    assert rule.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert rule["apiVersion"] == "monitoring.coreos.com/v1"
    expected = yaml.safe_load((RULES / f"{name}.yml").read_text())
    assert rule["spec"] == expected, "run make rules"
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(rule["spec"]))
    promtool("check", "rules", "--lint-fatal", str(file))


def test_each_sidecar_is_scraped_as_the_rules_and_the_dashboard_know_it(
    monitoring: Manifests, tmp_path: Path
) -> None:
    monitor = monitoring.one("PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"].keys() == {"selector", "podMetricsEndpoints"}
    stateful = Manifests(MANIFESTS).one("StatefulSet")["spec"]["template"]
    labels = stateful["metadata"]["labels"].items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
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

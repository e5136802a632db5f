"""The manifests of `deploy/kubernetes`, as kustomize and the kubelet would take them.

Of kustomize there is just what our files use; whatever else one says is refused.
`faults_of` is what is wrong with objects, so that it can be tried on wrong ones.
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from cyclopts import CycloptsError

from liveness import __version__
from liveness.cli.backup import ROOM, SPARE_BYTES
from liveness.config.settings import Config
from liveness.config.sources import DEFAULT_FILE
from liveness.core.wire.frames import MAX_KEY_BYTES, MAX_TEXT_BYTES
from liveness.core.wire.uids import MAX_NAME_BYTES
from liveness.errors import LivenessError
from liveness.lab.bench.floors import STOP_S
from liveness.service.storage.database import WAL_BYTES
from tests.helpers.command_lines import checked
from tests.helpers.processes import ran
from tests.helpers.tree import ROOT

MANIFESTS: Final = ROOT / "deploy" / "kubernetes"
RESULTS: Final = ROOT / "docs/results"
UNITS: Final = {"m": 1e-3, "Mi": 2**20, "Gi": 2**30, "": 1}
# What docs/performance.md says of timers that are loaded, in bytes each.
TIMER_BYTES: Final = 130
# Lists of everyone at a time (docs/limits.md), and at most so much for a user.
LISTS: Final = 4
LINE_BYTES: Final = 200

Object = dict[str, Any]
KNOWN: Final = {
    "Kustomization": {"resources", "configMapGenerator", "components"},
    "Component": {"patches"},
}


class Manifests:
    """Objects of one kustomization, the files of its ConfigMaps, and no other."""

    def __init__(self, folder: Path) -> None:
        self.objects: list[Object] = []
        self.files: dict[str, dict[str, Path]] = {}  # by ConfigMap, by key
        said = yaml.safe_load((folder / "kustomization.yaml").read_text())
        assert said.keys() <= {"apiVersion", "kind"} | KNOWN[said["kind"]], said
        for name in said["resources"]:
            self.objects += yaml.safe_load_all((folder / name).read_text())
        for one in said.get("configMapGenerator", []):
            assert one.keys() == {"name", "files"}, one
            self.files[one["name"]] = {name: folder / name for name in one["files"]}
        for name in said.get("components", []):
            self._patch(folder / name)

    def _patch(self, folder: Path) -> None:
        said = yaml.safe_load((folder / "kustomization.yaml").read_text())
        assert said.keys() == {"apiVersion", "kind"} | KNOWN["Component"], said
        for one in said["patches"]:
            assert one.keys() == {"patch"}, one
            patch = yaml.safe_load(one["patch"])
            target = self.one(patch["kind"], patch["metadata"]["name"])
            merged = _merged(target, patch)
            target.clear()
            target.update(merged)

    def one(self, kind: str, name: str | None = None) -> Object:
        """The one object of a kind, or of a kind and name."""
        (found,) = (
            one
            for one in self.objects
            if one["kind"] == kind and name in (None, one["metadata"]["name"])
        )
        return found


def _merged(target: Any, patch: Any) -> Any:
    """As kustomize merges: maps by key, lists of named things by their name; null ends."""
    if isinstance(target, dict) and isinstance(patch, dict):
        merged = target | {
            key: _merged(target[key], it) if key in target else it
            for key, it in patch.items()
        }
        return {key: it for key, it in merged.items() if it is not None}
    if isinstance(target, list) and isinstance(patch, list):
        ours, theirs = ({one["name"]: one for one in it} for it in (target, patch))
        gone = {name for name, one in theirs.items() if one.get("$patch") == "delete"}
        merged = _merged(ours, theirs)
        return [one for name, one in merged.items() if name not in gone]
    return patch


def durable(tmp_path: Path) -> Path:
    """The folder with the last lines of its kustomization uncommented."""
    folder = tmp_path / "kubernetes"
    shutil.copytree(MANIFESTS, folder)
    file = folder / "kustomization.yaml"
    commented = "\n#components:\n#  - durable\n"
    assert file.read_text().count(commented) == 1
    file.write_text(file.read_text().replace(commented, commented.replace("#", "")))
    return folder


def by_kubectl(folder: Path) -> Manifests:
    """What kubectl makes of a folder, which must be what we make of it."""
    done = ran("kubectl", "kustomize", folder)
    assert (done.returncode, done.stderr) == (0, "")
    objects: list[Object] = list(yaml.safe_load_all(done.stdout))
    manifests = Manifests(folder)
    for one in (it for it in objects if it["kind"] == "ConfigMap"):
        hashed = one["metadata"]["name"]
        name = hashed.rpartition("-")[0]
        files = manifests.files[name]
        assert one["data"] == {key: it.read_text() for key, it in files.items()}
        text = json.dumps(objects).replace(json.dumps(hashed), json.dumps(name))
        objects = json.loads(text)
    rest = [one for one in objects if one["kind"] != "ConfigMap"]
    assert sorted(map(_sorted, rest)) == sorted(map(_sorted, manifests.objects))
    manifests.objects = rest
    return manifests


def _sorted(one: Object) -> str:
    return json.dumps(one, sort_keys=True)


# --- a pod ----------------------------------------------------------------------------


def quantity(text: str | int) -> float:
    """A number in the form of Kubernetes: `200m`, `256Mi`."""
    found = re.fullmatch(r"(\d+)(m|Mi|Gi|)", str(text))
    assert found, text
    return int(found[1]) * UNITS[found[2]]


def pod_of(manifests: Manifests) -> Object:
    pod: Object = manifests.one("StatefulSet")["spec"]["template"]["spec"]
    return pod


def container(pod: Object, name: str) -> Object:
    (found,) = (one for one in _containers(pod) if one["name"] == name)
    return found


def _containers(pod: Object) -> list[Object]:
    return [*pod["initContainers"], *pod["containers"]]


def environment(one: Object, pod_name: str, namespace: str) -> dict[str, str]:
    """The environment that the kubelet gives a container."""
    fields = {"metadata.name": pod_name, "metadata.namespace": namespace}
    known: dict[str, str] = {}
    for it in one["env"]:
        if "value" in it:
            known[it["name"]] = expanded(it["value"], known)
        else:
            known[it["name"]] = fields[it["valueFrom"]["fieldRef"]["fieldPath"]]
    return known


def expanded(text: str, known: Mapping[str, str]) -> str:
    """A value or an argument, with references to earlier variables expanded."""
    return re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text)


def settings(manifests: Manifests) -> Config:
    """The settings of the sidecar in the first pod.

    Raises:
        LivenessError: It would not start.
    """
    pod = pod_of(manifests)
    sidecar = container(pod, "liveness")
    return checked(
        sidecar["command"],
        {
            name: value
            for name, value in environment(sidecar, "chat-0", "prod").items()
            if name.startswith("LIVENESS_")
        },
        unix_user=sidecar["securityContext"]["runAsUser"],
        file=mounted_file(manifests, sidecar, DEFAULT_FILE),
    )


def mounted_file(manifests: Manifests, one: Object, path: Path) -> Path:
    """The file of a ConfigMap that lies at *path* in a container."""
    (mount,) = (it for it in one["volumeMounts"] if it["mountPath"] == str(path.parent))
    volume = volume_of(pod_of(manifests), mount["name"])
    return manifests.files[volume["configMap"]["name"]][path.name]


def volume_of(pod: Object, name: str) -> Object:
    found: Object
    (found,) = (one for one in pod["volumes"] if one["name"] == name)
    return found


# --- what is wrong --------------------------------------------------------------------


def faults_of(manifests: Manifests) -> list[str]:
    """The faults of a gateway's objects and its sidecar's, a sentence each."""
    try:
        config = settings(manifests)
    except (CycloptsError, LivenessError, AssertionError, LookupError) as error:
        return [f"the sidecar would not start: {error}"]
    return [
        *_of_start(manifests),
        *_of_volumes(manifests, config),
        *_of_users(manifests, config),
        *_of_ports(manifests, config),
        *_of_the_network(manifests, config),
        *_of_resources(manifests, config),
    ]


def _of_start(manifests: Manifests) -> Iterator[str]:
    pod = pod_of(manifests)
    sidecar = container(pod, "liveness")
    if pod["enableServiceLinks"] is not False:
        yield "a Service's variables are refused as settings"
    if sidecar not in pod["initContainers"] or sidecar["restartPolicy"] != "Always":
        yield "liveness is no native sidecar"
    if "cpu" in sidecar["resources"]["limits"]:
        yield "a quota on the processor stops the hand"
    if pod["terminationGracePeriodSeconds"] < 2 * STOP_S:
        yield "there is no time to stop both one after the other"
    for one in _containers(pod):
        if one["image"] != f"localhost/liveness:{__version__}":
            yield f"{one['name']}: the image is not of this version"


def _of_volumes(manifests: Manifests, config: Config) -> Iterator[str]:
    stateful = manifests.one("StatefulSet")["spec"]
    pod = pod_of(manifests)
    templates = stateful.get("volumeClaimTemplates", [])
    claims = [one["metadata"]["name"] for one in templates]
    there = [one["name"] for one in pod["volumes"]] + claims
    places = {
        one["name"]: {
            it["name"]: (Path(it["mountPath"]), it.get("readOnly", False))
            for it in one["volumeMounts"]
        }
        for one in _containers(pod)
    }
    mounted = {name for of_one in places.values() for name in of_one}
    if sorted(there) != sorted(mounted):
        yield f"volumes are {sorted(there)}, and what is mounted {sorted(mounted)}"
        return
    ours, gateways = places["liveness"], places["gateway"]
    if config.socket.path.parent != ours["socket"][0] or ours["socket"][1]:
        yield "the sidecar cannot make its socket in the volume"
    known = environment(container(pod, "gateway"), "chat-0", "prod")
    socket = gateways["socket"][0] / config.socket.path.name
    if Path(known["LIVENESS_SOCKET_PATH"]) != socket:
        yield "the gateway looks elsewhere for the socket"
    if not gateways["socket"][1]:
        yield "the gateway can put a socket in the place of the sidecar's"
    if config.state.dir.parent != ours["state"][0] or ours["state"][1]:
        yield "the state is not a folder of the sidecar's own in the volume"
    if gateways.keys() != {"socket"}:
        yield "the gateway sees more than the socket"
    secret = volume_of(pod, "token")["secret"]
    if config.http.token_file != ours["token"][0] / "token":
        yield "the token is not where the Secret is"
    if secret["defaultMode"] & 0o007 or not secret["defaultMode"] & 0o040:
        yield "the token is closed to the sidecar, or open to others"


def _of_users(manifests: Manifests, config: Config) -> Iterator[str]:
    pod = pod_of(manifests)
    profile = {"type": "RuntimeDefault"}
    may = pod["securityContext"]
    if not may["runAsNonRoot"] or may["seccompProfile"] != profile:
        yield "the pod may do more than it has to"
    for one in _containers(pod):
        may = one["securityContext"]
        if (
            may["allowPrivilegeEscalation"] is not False
            or may["readOnlyRootFilesystem"] is not True
            or may["capabilities"] != {"drop": ["ALL"]}
            or not may["runAsUser"]
        ):
            yield f"{one['name']} may do more than it has to"
    sidecar, gateway = (
        container(pod, name)["securityContext"] for name in ("liveness", "gateway")
    )
    if sidecar["runAsUser"] == gateway["runAsUser"]:
        yield "the gateway is the sidecar's user, and can do what it can"
    if config.access.gateways != str(gateway["runAsUser"]):
        yield "access.gateways is not just the gateway's user"
    rights = (config.access.watchers, config.access.everyone, config.access.admin)
    if set(rights) != {"own"}:
        yield "others than the sidecar's user may watch or change things"


def _of_ports(manifests: Manifests, config: Config) -> Iterator[str]:
    pod = pod_of(manifests)
    every = [port for one in _containers(pod) for port in one["ports"]]
    ports = {port["name"]: port["containerPort"] for port in every}
    if ports["liveness"] != config.http.port or config.http.is_on_loopback:
        yield "HTTP is not on the pod's port"
    for one in _containers(pod):
        for name in (key for key in one if key.endswith("Probe")):
            asked = one[name].get("httpGet") or one[name].get("tcpSocket")
            if asked and asked["port"] not in {it["name"] for it in one["ports"]}:
                yield f"{one['name']}: {name} asks at no port of it"
    stateful = manifests.one("StatefulSet")["spec"]
    names, users = (
        manifests.one("Service", it)["spec"] for it in ("chat", "chat-users")
    )
    given = [{it["name"]: it["port"] for it in one["ports"]} for one in (names, users)]
    if given != [{name: ports[name]} for name in ("liveness", "chat")]:
        yield "the Services' ports are not the pod's"
    if names.get("clusterIP") != "None" or not names.get("publishNotReadyAddresses"):
        yield "a pod that is not ready loses its name"
    if users.get("publishNotReadyAddresses"):
        yield "users are sent to pods that are not ready"
    budget = manifests.one("PodDisruptionBudget")["spec"]
    if budget.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
        yield "where no pod is ready no node is drained"
    labels = stateful["template"]["metadata"]["labels"].items()
    policy = manifests.one("NetworkPolicy")["spec"]
    spread = pod["topologySpreadConstraints"]
    chosen = [
        stateful["selector"]["matchLabels"],
        names["selector"],
        users["selector"],
        budget["selector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
        *(one["labelSelector"]["matchLabels"] for one in spread),
    ]
    if not all(one.items() <= labels for one in chosen):
        yield "something chooses other pods"
    if stateful["serviceName"] != "chat":
        yield "the pods have no names"
    for domain in ("", ".prod", ".prod.svc", ".prod.svc.cluster.local"):
        name = f"chat-0.{stateful['serviceName']}{domain}"
        if name not in config.http.names:
            yield f"the sidecar does not know that its pod is called {name}"


def _of_the_network(manifests: Manifests, config: Config) -> Iterator[str]:
    policy = manifests.one("NetworkPolicy")["spec"]
    if policy.get("policyTypes") != ["Ingress", "Egress"] or policy["egress"]:
        yield "a pod may begin connections"
    from_anywhere = [one["ports"] for one in policy["ingress"] if not one.get("from")]
    (chat,) = container(pod_of(manifests), "gateway")["ports"]
    if from_anywhere != [[{"port": chat["containerPort"]}]]:
        yield "not just the users' port is open to everybody"
    read = [one["ports"] for one in policy["ingress"] if one.get("from")]
    if read != [[{"port": config.http.port}]]:
        yield "no reader gets through to HTTP"


def measured(report: str, scenario: str, name: str) -> float:
    """A figure of the sidecar's in a report that is committed, in its own unit."""
    figures = json.loads((RESULTS / f"{report}.json").read_text())["figures"]
    wanted = {"scenario": scenario, "name": name, "system": "liveness"}
    (found,) = (one for one in figures if wanted.items() <= one.items())
    return float(found["value"])


def memory_bytes(config: Config) -> float:
    """The memory with the most users and timers that the settings allow."""
    million = measured("million", "logins", "server memory with all online")
    storm = measured("million", "silence", "memory growth")
    timers = min(config.timers.max_live, config.timers.max_loaded) * TIMER_BYTES
    return (million + storm) * 1e6 * config.limits.max_users / 1e6 + timers


def state_bytes(config: Config) -> float:
    """The most disk space of the state: log, timers and temporary files."""
    # A timer's payload and last message; its names, which are in an index too.
    timer = 2 * MAX_TEXT_BYTES + 2 * (2 * MAX_KEY_BYTES + MAX_NAME_BYTES) + 200
    timers = (config.timers.max_live + config.timers.max_ended) * timer
    # The log is trimmed in steps, and a WAL cut back after a burst.
    log = 1.5 * config.state.retention_bytes + 4 * WAL_BYTES
    return log + timers + LISTS * config.limits.max_users * LINE_BYTES


def _of_resources(manifests: Manifests, config: Config) -> Iterator[str]:
    pod = pod_of(manifests)
    asked = container(pod, "liveness")["resources"]
    needed = memory_bytes(config)
    if quantity(asked["requests"]["memory"]) < 1.25 * needed:
        yield f"the memory asked for is under 1.25 times {needed / 1e6:.0f} MB"
    if quantity(asked["limits"]["memory"]) < 2 * needed:
        yield f"the limit of memory is under twice {needed / 1e6:.0f} MB"
    steady = max(
        measured(report, "steady", "server CPU with 50 offlines a second") / 100
        for report in ("hundred-thousand", "million")
    )
    if quantity(asked["requests"]["cpu"]) < 3 * steady:
        yield f"the processor asked for is under three times {steady:.3f} cores"
    ready_s = measured("million", "restart", "ready after kill -9")
    probe = container(pod, "liveness").get("startupProbe")
    if probe is None:
        yield "the gateway does not wait for the sidecar"
    elif probe["periodSeconds"] * probe["failureThreshold"] < 20 * ready_s:
        yield f"a start may take no 20 times {ready_s:.1f} s"
    largest = state_bytes(config)
    if _state_room(manifests) < largest:
        yield f"the state may become {largest / 2**30:.1f} GiB"
    backups = volume_of(pod, "backups")["emptyDir"]["sizeLimit"]
    if quantity(backups) < ROOM * largest + SPARE_BYTES:
        yield "a backup may not have the room that it needs"


def _state_room(manifests: Manifests) -> float:
    stateful = manifests.one("StatefulSet")["spec"]
    for claim in stateful.get("volumeClaimTemplates", []):
        return quantity(claim["spec"]["resources"]["requests"]["storage"])
    room = volume_of(pod_of(manifests), "state")["emptyDir"]["sizeLimit"]
    return quantity(room)

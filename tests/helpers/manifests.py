"""The manifests of `deploy/kubernetes`, as kustomize and the kubelet take them.

Of kustomize there is just what our files use; whatever else one says is refused.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from liveness.config.settings import Config
from liveness.config.sources import DEFAULT_FILE
from tests.helpers.command_lines import checked
from tests.helpers.tree import ROOT

MANIFESTS: Final = ROOT / "deploy" / "kubernetes"
UNITS: Final = {"m": 1e-3, "Mi": 2**20, "Gi": 2**30, "": 1}

Object = dict[str, Any]


class Manifests:
    """Objects of one kustomization, the files of its ConfigMaps, and no other."""

    def __init__(self, folder: Path, *components: str) -> None:
        self.objects: list[Object] = []
        self.files: dict[str, dict[str, Path]] = {}  # by ConfigMap, by key
        said = _kustomization(folder, "resources", "configMapGenerator")
        for name in said["resources"]:
            self.objects += yaml.safe_load_all((folder / name).read_text())
        for one in said.get("configMapGenerator", []):
            self.files[one["name"]] = {name: folder / name for name in one["files"]}
        for name in components:
            for one in _kustomization(folder / name, "patches")["patches"]:
                patch = yaml.safe_load(one["patch"])
                target = self.one(patch["kind"], patch["metadata"]["name"])
                target |= _merged(target, patch)

    def one(self, kind: str, name: str | None = None) -> Object:
        """The one object of a kind, or of a kind and name."""
        (found,) = (
            one
            for one in self.objects
            if one["kind"] == kind and name in (None, one["metadata"]["name"])
        )
        return found

    @property
    def pod(self) -> Object:
        pod: Object = self.one("StatefulSet")["spec"]["template"]["spec"]
        return pod

    def container(self, name: str) -> Object:
        return named([*self.pod["initContainers"], *self.pod["containers"]], name)

    def settings(self) -> Config:
        """The settings of the sidecar in the first pod; fails if it would not start."""
        sidecar = self.container("liveness")
        given = environment(sidecar).items()
        mount = next(
            it
            for it in sidecar["volumeMounts"]
            if it["mountPath"] == str(DEFAULT_FILE.parent)
        )
        settings = named(self.pod["volumes"], mount["name"])["configMap"]["name"]
        return checked(
            sidecar["command"],
            {name: value for name, value in given if name.startswith("LIVENESS_")},
            unix_user=sidecar["securityContext"]["runAsUser"],
            file=self.files[settings][DEFAULT_FILE.name],
        )


def _kustomization(folder: Path, *known: str) -> Object:
    said: Object = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert said.keys() <= {"apiVersion", "kind", *known}, said
    return said


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


def named(every: list[Object], name: str) -> Object:
    (found,) = (one for one in every if one["name"] == name)
    return found


def environment(container: Object) -> dict[str, str]:
    """The environment that the kubelet gives a container of the first pod."""
    fields = {"metadata.name": "chat-0", "metadata.namespace": "prod"}
    known: dict[str, str] = {}
    for it in container["env"]:
        if "value" in it:
            known[it["name"]] = expanded(it["value"], known)
        else:
            known[it["name"]] = fields[it["valueFrom"]["fieldRef"]["fieldPath"]]
    return known


def expanded(text: str, known: Mapping[str, str]) -> str:
    """A value or an argument, with references to earlier variables expanded."""
    return re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text)


def quantity(text: str | int) -> float:
    """A number in the form of Kubernetes: `200m`, `256Mi`."""
    found = re.fullmatch(r"(\d+)(m|Mi|Gi|)", str(text))
    assert found, text
    return int(found[1]) * UNITS[found[2]]

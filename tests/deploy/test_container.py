"""What only an engine reads of the container's files names what there is.

That the image is built and serves is shown in `tests/machine/test_podman.py`.
"""

import re
from typing import Any, Final

import pytest
import yaml

import liveness
from tests.helpers.tree import ROOT

HERE: Final = ROOT / "deploy" / "container"
SERVICES: Final[dict[str, dict[str, Any]]] = yaml.safe_load(
    (HERE / "compose.yml").read_text()
)["services"]


@pytest.mark.parametrize(
    ("name", "pattern", "times"),
    [
        ("deploy/container/Containerfile", r'image\.version="([^"]*)"', 1),
        ("deploy/container/Containerfile", r"localhost/liveness:?(\S*)", 2),
        ("deploy/container/compose.yml", r"localhost/liveness:?(\S*)-compose", 2),
        ("deploy/kubernetes/gateway.yaml", r"localhost/liveness:?(\S*)", 2),
        ("deploy/kubernetes/kustomization.yaml", r"newTag: (\S*)", 1),
        ("docs/deployment.md", r"localhost/liveness:?(\S*)", 2),
        ("docs/backups.md", r"localhost/liveness:([\d.]*)", 3),
        ("docs/command-line.md", r"(?m)^liveness +([\d.]+) \(", 2),
        ("docs/operations.md", r"(?m)^liveness +([\d.]+) \(", 1),
    ],
)
def test_a_file_that_names_the_version_names_this_one(
    name: str, pattern: str, times: int
) -> None:
    found = re.findall(pattern, (ROOT / name).read_text())
    assert found == [liveness.__version__] * times


def test_an_engine_is_sent_sources_and_no_secret() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    first, *others = (line for line in lines if line and not line.startswith("#"))
    assert first == "*"
    sent = {line[1:] for line in others if line.startswith("!")}
    sources = {"LICENSE", "README.md", "liveness", "pyproject.toml", "setup.py"}
    assert sent == sources | {"requirements/runtime.lock"}
    assert "/deploy/container/token" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_do_no_more_than_it_must(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.keys() >= {"mem_limit", "pids_limit", "restart", "healthcheck"}
    assert "cpus" not in service  # a quota stops the hand
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert ":latest" not in service["image"]


def test_prometheus_has_the_rules_and_the_job_that_they_know() -> None:
    ours = yaml.safe_load((HERE / "prometheus.yml").read_text())
    example = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert ours["rule_files"] == example["rule_files"]
    jobs = [one["scrape_configs"][0]["job_name"] for one in (ours, example)]
    assert len(set(jobs)) == 1

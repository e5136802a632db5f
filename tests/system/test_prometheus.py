"""A real Prometheus on a real sidecar: every expression of dashboard and rules has data.

Prometheus has the configuration and the rules of `deploy/prometheus`, with shorter
intervals; the dashboard's expressions are filled in as Grafana does. That alerts fire when
they should is shown in `deploy/prometheus/alerts_test.yml`.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from liveness.lab.common.processes import free_port
from tests.deploy.test_monitoring import ALERTS, DASHBOARD, DEPLOYED, PANELS
from tests.helpers.needs import require
from tests.helpers.redis_servers import redis_server
from tests.system.sidecar import Sidecar, eventually

SCRAPE_S: Final = 0.5
# What Grafana takes where a pixel of the panel is less than a scrape apart.
RATE_S: Final = 4 * SCRAPE_S
TOKEN: Final = "correct-horse-battery-staple"
# The one rule that is about what is not there.
MISSING: Final = "LivenessMissing"
# What they ask about is known of users who are watched for longer.
SAMPLED: Final = "How often users speak"
TOO_SHORT: Final = "LivenessTimeoutShort"
OUTLET: Final = """
[webhooks.mail]
url = "http://127.0.0.1:{port}/"
secret_file = "{secret}"
"""
EXPRESSIONS: Final[dict[str, list[str]]] = {
    panel["title"]: [target["expr"] for target in panel["targets"]] for panel in PANELS
}
# They tell of what a user, a gateway or a timer does, and of nothing before.
MOVED: Final = [
    *("Users online", "Users by gateway", "Users on all hosts", "Events received"),
    *("Sessions begun", "Sessions ended", "Offlines a second", "Records written"),
    *("Timers by state", "Runs of timers", "Frames refused", "HTTP refused"),
    *("Unacknowledged", "Links", "Calls to Redis", "Outlets behind by"),
]


class Prometheus:
    """A server with a folder of its own, which scrapes this sidecar."""

    def __init__(self, folder: Path, sidecar: Sidecar, token: Path) -> None:
        config = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text())
        every = f"{SCRAPE_S * 1000:.0f}ms"
        config["global"] = {"scrape_interval": every, "evaluation_interval": every}
        config["rule_files"] = [str(DEPLOYED / name) for name in config["rule_files"]]
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": [sidecar.line("ready")["http"]]}]
        job["authorization"] = {"credentials_file": str(token)}
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        self._api = f"http://{address}/api/v1"
        self._log = folder / "log"
        command = [
            *(require("prometheus"), f"--config.file={file}"),
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, path: str, **parameters: object) -> Any:
        """The answer of a page of its API; a refused expression is an error."""
        with urlopen(f"{self._api}/{path}?{urlencode(parameters)}") as answer:
            return json.load(answer)["data"]

    def between(
        self, expression: str, begin_s: float, end_s: float
    ) -> set[tuple[str, str]]:
        """The values of each series of an expression in this time."""
        times = {"start": begin_s, "end": end_s, "step": SCRAPE_S / 2}
        found = self.ask("query_range", query=expression, **times)["result"]
        return {
            (json.dumps(series["metric"], sort_keys=True), value)
            for series in found
            for _, value in series["values"]
        }

    def until(self, expression: str) -> None:
        """Waits until Prometheus has seen that this is so."""

        def is_so() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            with suppress(URLError):  # it does not listen yet
                return bool(self.between(expression, now_s(), now_s()))
            return False

        eventually(is_so, lambda: f"never: {expression}")


def now_s() -> float:
    return time_ns() / 1e9


@dataclass
class Scene:
    prometheus: Prometheus
    calm_s: float  # a moment before anything happens
    end_s: float

    def calm(self, expression: str) -> set[tuple[str, str]]:
        return self.prometheus.between(expression, self.calm_s, self.calm_s)

    def all(self, expression: str) -> set[tuple[str, str]]:
        return self.prometheus.between(expression, self.calm_s, self.end_s)

    def shown(self, expression: str) -> str:
        """An expression of the dashboard as Grafana sends it, where all is chosen."""
        chosen = {"__rate_interval": f"{RATE_S:.0f}s", "__range": "60s"}
        for variable in DASHBOARD["templating"]["list"]:
            if variable["type"] == "query":
                asked = filled_in(variable["query"]["query"], chosen)
                found = re.fullmatch(r"label_values\((.+), (\w+)\)", asked)
                assert found, asked
                values = self.prometheus.ask(
                    f"label/{found[2]}/values", **{"match[]": found[1]}
                )
                every = "|".join(value.replace(".", r"\\.") for value in values)
                chosen[variable["name"]] = variable.get("allValue") or f"({every})"
        return filled_in(expression, chosen)


def filled_in(expression: str, chosen: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda name: chosen[name[1]], expression)


def play(sidecar: Sidecar, prometheus: Prometheus) -> None:
    """What moves the panels of `MOVED`, all seen by Prometheus at the end."""
    gateway = sidecar.gateway("gw-1", timeout=1)
    gateway.send("login", ["ada", "bob", "eve"])
    gateway.send("login", "stays", {"timeout": 3_600})
    gateway.send("after", "good", 0.1)
    gateway.send("after", "later", 3_600)
    gateway.apply("logout", "bob")
    gateway.take(3)  # two offline, one timer
    gateway.send("done", "good")
    for _ in range(50):
        gateway.send("nonsense")
    frame = gateway.receive()
    assert frame
    assert frame[0] == "error"
    for _ in range(20):
        sidecar.ask("http", "GET", "/v1/timers")
    prometheus.until('liveness_offline_total{reason="silence"} == 2')
    prometheus.until('liveness_timers{state="done"} == 1')
    prometheus.until('liveness_http_refused_total{why="token"} > 0')
    prometheus.until('liveness_frames_refused_total{code="unknown-frame"} == 50')
    prometheus.until("liveness_outlet_lag_records > 0")
    prometheus.until("liveness_cluster_users == 1")
    # So that a rate has a scrape before and one after.
    seen_s = now_s() + RATE_S
    prometheus.until(f"min(timestamp(liveness_users_online)) > {seen_s}")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Plays everything once. The results can be queried from Prometheus afterwards."""
    folder = tmp_path_factory.mktemp("prometheus")
    for name, text in {"token": TOKEN, "secret": f"whsec_{'A' * 32}"}.items():
        (folder / name).touch(0o600)
        (folder / name).write_text(text)
    settings = folder / "outlets.toml"
    settings.write_text(OUTLET.format(port=free_port(), secret=folder / "secret"))
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        sidecar = stack.enter_context(Sidecar(tmp_path_factory.mktemp("s")))
        sidecar.start(
            cluster_url=redis.url,
            cluster_host="first",
            http_token_file=folder / "token",
            flush_s=0.1,
            config=settings,
        )
        prometheus = Prometheus(folder, sidecar, folder / "token")
        stack.callback(prometheus.close)
        # So that a rate is one over calm scrapes only.
        prometheus.until("min(count_over_time(liveness_users_online[1m])) >= 7")
        calm_s = now_s()
        play(sidecar, prometheus)
        yield Scene(prometheus, calm_s, now_s())


def compared(expression: str) -> str:
    """Whether a comparison holds, in the place of what it holds of."""
    first = expression.partition(" unless ")[0]
    return re.sub(r" (==|[<>]=?) ", r" \1 bool ", first)


@pytest.mark.parametrize("title", sorted(EXPRESSIONS.keys() - {SAMPLED}))
def test_a_panel_has_data(scene: Scene, title: str) -> None:
    for expression in map(scene.shown, EXPRESSIONS[title]):
        assert scene.all(compared(expression)), expression


@pytest.mark.parametrize("title", MOVED)
def test_a_panel_shows_what_happens(scene: Scene, title: str) -> None:
    expressions = [scene.shown(one) for one in EXPRESSIONS[title]]
    assert any(scene.all(one) - scene.calm(one) for one in expressions)


@pytest.mark.parametrize("name", sorted(ALERTS.keys() - {TOO_SHORT}))
def test_an_alert_has_data_to_compare(scene: Scene, name: str) -> None:
    expression = ALERTS[name]["expr"]
    if name == MISSING:
        assert not scene.all(expression)
        expression = expression.replace("liveness", "nobody")
    assert scene.all(compared(expression)), expression

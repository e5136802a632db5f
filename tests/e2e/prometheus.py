"""Debian's Prometheus on running sidecars, and Grafana's way of asking it.

The configuration is the one of `deploy/prometheus`, with its rules, only quicker and
with the tests' own targets.
"""

import json
import math
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from time import time_ns
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.e2e.sidecar import ROOT, SOON_S, Sidecar, eventually

DEPLOYED: Final = ROOT / "deploy" / "prometheus"
SCRAPE_S: Final = 0.5
# What Grafana takes where a pixel of the panel is less than a scrape apart.
RATE_S: Final = 4 * SCRAPE_S
STEP_S: Final = SCRAPE_S / 2
READY: Final = "Server is ready to receive web requests."

Labels = frozenset[tuple[str, str]]


class Sample(NamedTuple):
    """One value of one series."""

    labels: Labels
    value: float


def now_s() -> float:
    """Prometheus' clock."""
    return time_ns() / 1e9


class Prometheus:
    """A server of its own, in a folder of its own, that scrapes these sidecars.

    Args:
        folder: An empty one.
        sidecars: They are ready.
        token: A file with what a proxy in front of them would want.
    """

    def __init__(self, folder: Path, sidecars: list[Sidecar], token: Path) -> None:
        for program in ("prometheus", "promtool"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is missing: apt install prometheus")
        self.began_s = now_s()
        self._config = folder / "prometheus.yml"
        self._config.write_text(_configuration(sidecars, token))
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self._config}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
                "--log.format=json",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._said: list[str] = []
        self._address = ""
        self._is_ready = False
        self._has_said = threading.Event()
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()

    def __enter__(self) -> Self:
        self._has_said.wait(SOON_S)
        if not self._is_ready:
            self.__exit__()
            raise AssertionError(f"Prometheus is not ready: {self._said}")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.kill()
        self._process.wait(SOON_S)
        self._reader.join(SOON_S)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            told = json.loads(line)
            if told.get("msg") == "Listening on":
                self._address = told["address"]
            elif told.get("msg") == READY:
                self._is_ready = True
                self._has_said.set()
        self._has_said.set()  # it has ended

    # --- its API --------------------------------------------------------------

    def ask(self, path: str, **parameters: object) -> Any:
        """What a page of its API says; a refused expression is an error."""
        wanted = urlencode(parameters, doseq=True)
        with urlopen(f"http://{self._address}/api/v1/{path}?{wanted}") as answer:
            return json.load(answer)["data"]

    def now(self, expression: str) -> list[Sample]:
        """The values of an expression as of now."""
        found = self.ask("query", query=expression)
        assert found["resultType"] == "vector", expression
        return [Sample(_labels(one), float(one["value"][1])) for one in found["result"]]

    def between(self, expression: str, begin_s: float, end_s: float) -> list[Sample]:
        """Every value of an expression in this time, `STEP_S` apart; in order of time."""
        found = self.ask(
            "query_range", query=expression, start=begin_s, end=end_s, step=STEP_S
        )
        points = sorted(
            (at, Sample(_labels(one), float(value)))
            for one in found["result"]
            for at, value in one["values"]
        )
        return [sample for _, sample in points]

    def until(self, expression: str) -> None:
        """Waits until Prometheus has seen that this is so."""
        eventually(lambda: bool(self.now(expression)), lambda: f"never: {expression}")

    def values(self, query: str) -> list[str]:
        """The choices of a variable, as Grafana asks for them."""
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert asked, query
        found: list[str] = self.ask(f"label/{asked[2]}/values", **{"match[]": asked[1]})
        return found


def is_new(before: list[Sample], after: list[Sample]) -> bool:
    """Whether there is a value that was not there before, of an old series or a new one."""
    old = {(one.labels, str(one.value)) for one in before}
    return any((one.labels, str(one.value)) not in old for one in after)


def has_data(samples: list[Sample]) -> bool:
    """Whether there is a number among them."""
    return any(math.isfinite(one.value) for one in samples)


def _labels(one: dict[str, Any]) -> Labels:
    return frozenset(one["metric"].items())


def _configuration(sidecars: list[Sidecar], token: Path) -> str:
    config = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(
        ("scrape_interval", "evaluation_interval"), f"{SCRAPE_S * 1000:.0f}ms"
    )
    config["rule_files"] = [str(DEPLOYED / name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [
        {"targets": [one.line("ready")["http"] for one in sidecars]}
    ]
    job["authorization"] = {"credentials_file": str(token)}
    return yaml.safe_dump(config)


# --- Grafana ------------------------------------------------------------------------


def filled_in(expression: str, chosen: dict[str, str], range_s: float) -> str:
    """An expression as Grafana sends it."""
    own = {"__rate_interval": f"{RATE_S * 1000:.0f}ms", "__range": f"{range_s:.0f}s"}
    values = own | chosen
    return re.sub(r"\$(\w+)", lambda name: values[name[1]], expression)


def chosen_all(
    variables: list[dict[str, Any]], values: Callable[[str], list[str]]
) -> dict[str, str]:
    """What Grafana puts in for each variable where all is chosen."""
    chosen: dict[str, str] = {}
    for one in variables:
        if one["type"] != "query":
            continue
        asked = filled_in(one["query"]["query"], chosen, 0)
        each = [_escaped(value) for value in values(asked)]
        assert each, one["name"]
        chosen[one["name"]] = one.get("allValue") or f"({'|'.join(each)})"
    return chosen


def _escaped(value: str) -> str:
    """As Grafana's Prometheus data source writes a choice among several."""
    doubled = value.replace("\\", r"\\\\")
    return re.sub(r"[$^*{}\[\]+?.()|]", lambda sign: rf"\\{sign[0]}", doubled)

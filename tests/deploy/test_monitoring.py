"""Dashboard and rules are a contract: they name what exists, and what fires is explained."""

import json
import re
from functools import cache
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from grafana.dashboard import FILE, text
from liveness.metrics.counts import Counts
from tests.helpers.pages import anchors
from tests.helpers.processes import promtool
from tests.helpers.tree import ROOT
from tests.service.test_metrics import scraped
from tests.system.sidecar import Sidecar

DEPLOYED: Final = ROOT / "deploy" / "prometheus"
RUNBOOK: Final = (ROOT / "docs/runbook.md").read_text()
DASHBOARD: Final[dict[str, Any]] = json.loads(FILE.read_text())
PANELS: Final = [one for one in DASHBOARD["panels"] if one["type"] != "row"]
# By name, the values of each label.
Samples = dict[str, dict[str, set[str]]]
SEVERITIES: Final = {"critical", "warning"}

# Labels that Prometheus adds to every series, and series that it makes by itself.
ADDED: Final = {"job", "instance", "alertname", "alertstate"}
OWN: Final = {"up", "ALERTS"}
# Words of its language, which are no metrics.
# fmt: off
WORDS: Final = {
    "absent", "and", "avg_over_time", "by", "changes", "delta", "deriv", "group_left",
    "histogram_quantile", "increase", "max_over_time", "min", "min_over_time", "on", "or",
    "quantile_over_time", "rate", "resets", "sum", "time", "unless",
}
# fmt: on


def rules(file: str) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOYED / file).read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@cache
def cases(file: str) -> list[dict[str, Any]]:
    """What promtool is to find, of all tests of a file."""
    every = yaml.safe_load((DEPLOYED / file).read_text())["tests"]
    kinds = ("alert_rule_test", "promql_expr_test")
    return [case for one in every for kind in kinds for case in one.get(kind, [])]


ALERTS: Final = {one["alert"]: one for one in rules("alerts.yml")}
RECORDS: Final = {one["record"]: one for one in rules("recording.yml")}
EXPRESSIONS: Final = [
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(one["expr"] for one in (*ALERTS.values(), *RECORDS.values())),
    *(one["expr"] for one in DASHBOARD["annotations"]["list"] if "expr" in one),
]


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Every sample of a running sidecar that has a gateway; those of a cluster and an outlet."""
    with Sidecar(tmp_path_factory.mktemp("s")) as sidecar:
        sidecar.start().gateway("gw-1")
        _, metrics = sidecar.get("/metrics")
    promtool("check", "metrics", input=metrics)
    families = [*text_string_to_metric_families(metrics)]
    configured = [
        family
        for name, family in scraped(Counts()).items()
        if re.match("liveness_(cluster|outlet)_", name)
    ]
    names: Samples = {}
    for family in (*families, *configured):
        if not family.samples:  # not known at first
            names[family.name] = {}
        for sample in family.samples:
            labels = names.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    del names["python_info"]
    return names


def named(expression: str) -> set[str]:
    """The metrics that an expression is about."""
    bare = re.sub(r'"[^"]*"|\[[^]]*\]|\boffset \w+', "", expression)
    bare = re.sub(r"\b(by|on|group_left) \([^)]*\)", "", bare)
    bare = re.sub(r"\{[^}]*\}", "", bare)
    return set(re.findall(r"[a-zA-Z_][\w:]*", bare)) - WORDS


# --- the dashboard ------------------------------------------------------------------


def test_the_dashboard_committed_is_the_one_of_its_code() -> None:
    assert FILE.read_text() == text(), "run make dashboard"


def test_each_panel_leads_to_a_section_and_each_alert_has_a_panel() -> None:
    (variable,) = (
        one for one in DASHBOARD["templating"]["list"] if one["name"] == "runbook"
    )
    assert (variable["query"], variable["skipUrlSync"]) == ("docs/runbook.md", True)
    led_to = set[str]()
    for panel in PANELS:
        urls = [link["url"].split("#") for link in panel["links"]]
        assert {address for address, _ in urls} == {"${runbook:raw}"}, panel["title"]
        led_to |= {anchor for _, anchor in urls}
    assert led_to <= anchors(RUNBOOK)
    assert {name.lower() for name in ALERTS} <= led_to


# --- names --------------------------------------------------------------------------


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_what_exists(exposed: Samples, expression: str) -> None:
    assert named(expression) <= exposed.keys() | OWN | RECORDS.keys()
    for name, matchers in re.findall(r"([a-z_][\w:]*)\{([^}]*)\}", expression):
        for label, values in re.findall(r'(\w+)[!=]=?~?"([^"]*)"', matchers):
            if label in ADDED or values.startswith("$"):
                continue
            source = named(RECORDS[name]["expr"]) if name in RECORDS else {name}
            known = set().union(*(exposed[one][label] for one in source))
            assert set(values.split("|")) <= known, (name, label)
    # Other programs have these, too.
    for matchers in re.findall(r"\b(?:up|process_\w+)\b(\{[^}]*\})?", expression):
        assert 'job="liveness"' in matchers
    # What makes up a value where there is none would pass for data.
    assert not re.search(r"\bvector *\(", expression)
    assert "absent" not in expression or expression == ALERTS["LivenessMissing"]["expr"]


def test_every_metric_is_on_the_dashboard(exposed: Samples) -> None:
    shown = {
        re.sub(r"_bucket$", "", name)
        for panel in PANELS
        for target in panel["targets"]
        for name in named(target["expr"])
    }
    known = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exposed}
    assert known - shown == {"process_virtual_memory_bytes"}  # says nothing of memory


# --- the rules ----------------------------------------------------------------------


def test_promtool_finds_no_fault() -> None:
    for line in (
        "check config prometheus.yml",
        "check rules --lint-fatal recording.yml alerts.yml",
        "test rules alerts_test.yml recording_test.yml",
    ):
        promtool(*line.split(), cwd=DEPLOYED)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_shown_to_fire_and_not_to_fire(name: str) -> None:
    shown = (case for case in cases("alerts_test.yml") if case["alertname"] == name)
    expected = [case["exp_alerts"] for case in shown]
    assert any(expected)
    assert not all(expected)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_whom_it_is_about_how_bad_it_is_and_what_to_do(name: str) -> None:
    alert = ALERTS[name]
    assert alert["labels"].keys() == {"severity"}
    assert alert["labels"]["severity"] in SEVERITIES
    told = alert["annotations"]
    assert told.keys() == {"summary", "description", "runbook_url"}
    assert "{{ $labels." in told["description"]
    assert told["runbook_url"] == f"docs/runbook.md#{name.lower()}"

"""What a panel leads to: the sections of the runbook about the metrics that it shows.

An alert is about the metrics of its expression, those of recording rules included, so no
list of links has to be kept. Where no alert is about a panel's metrics, it leads to the
symptoms, which name panels.
"""

import re
from pathlib import Path
from typing import Any, Final

import yaml
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import Dataquery

# Alerts have the same text, so that one command puts an address in the place of both.
RUNBOOK: Final = "docs/runbook.md"
VARIABLE: Final = "runbook"

_RULES: Final = Path(__file__).parents[1] / "deploy" / "prometheus"
_SYMPTOMS: Final = "Symptoms without an alert"


def alerts() -> dict[str, set[str]]:
    """The metrics that each alert is about."""
    recorded = {rule["record"]: rule["expr"] for rule in _rules("recording.yml")}
    found = {}
    for alert in _rules("alerts.yml"):
        expression = alert["expr"]
        for name, meaning in recorded.items():
            expression = expression.replace(name, meaning)
        found[alert["alert"]] = _metrics(expression)
    return found


def links(panel: model.Panel, about: dict[str, set[str]]) -> list[model.DashboardLink]:
    """A link for each alert about the panel's metrics, or that its text names."""
    targets = [one for one in panel.targets or [] if isinstance(one, Dataquery)]
    shown = set().union(*(_metrics(one.expr) for one in targets))
    said = re.findall(r"\bLiveness\w+", panel.description or "")
    names = [name for name, metrics in about.items() if metrics & shown or name in said]
    return [_link(name) for name in names or [_SYMPTOMS]]


def _link(section: str) -> model.DashboardLink:
    anchor = section.lower().replace(" ", "-")
    # Raw, or Grafana would escape the slashes of the address.
    url = f"${{{VARIABLE}:raw}}#{anchor}"
    return model.DashboardLink(title=f"Runbook: {section}", url=url, target_blank=True)


def _rules(file: str) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((_RULES / file).read_text(encoding="utf-8"))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def _metrics(expression: str) -> set[str]:
    """The metrics in an expression; the series of a histogram are one."""
    names = re.findall(r"\b(?:liveness|process)_\w+|\bup\b", expression)
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}

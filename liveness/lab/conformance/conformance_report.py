"""The report of a run: text and JSON."""

import json
from collections import Counter
from collections.abc import Iterator

from liveness.lab.conformance.rules import (
    ADVISED,
    FAIL,
    NOT_TRIED,
    PASS,
    RULES,
    RuleVerdict,
    RunResult,
)
from liveness.text import printable

SUMMARY = {
    PASS: "kept",
    FAIL: "not kept",
    ADVISED: "advised and not kept",
    NOT_TRIED: "not tried",
}


def text_report(result: RunResult) -> Iterator[str]:
    """A line for each rule; below one that was not kept, what was seen and the frames."""
    for verdict in result.verdicts:
        label = f"G{verdict.rule}".ljust(4)
        if verdict.outcome == NOT_TRIED:
            yield f"{label} {NOT_TRIED}: {printable(verdict.why)}"
        else:
            yield f"{label} {verdict.outcome:<7}  {RULES[verdict.rule]}"
        yield from (f"     {line}" for line in _findings(verdict))
    yield from map(printable, result.broken_off)
    counts = Counter(verdict.outcome for verdict in result.verdicts)
    numbers = [
        f"{counts[each]} {words}" for each, words in SUMMARY.items() if counts[each]
    ]
    yield f"{result.name}: {', '.join(numbers)}, in {result.seconds:.0f} s"


def _findings(verdict: RuleVerdict) -> Iterator[str]:
    for finding in verdict.findings:
        yield f"in: {printable(finding.situation)}"
        yield f"seen: {printable(finding.seen)}"
        yield f"expected: {printable(finding.expected)}"
        yield from (f"  {printable(seen.text())}" for seen in finding.frames)


def json_report(result: RunResult) -> str:
    rules = [
        {
            "rule": f"G{verdict.rule}",
            "title": RULES[verdict.rule],
            "verdict": verdict.outcome.lower(),
            "why": verdict.why or None,
            "findings": [
                {**found._asdict(), "frames": [seen.text() for seen in found.frames]}
                for found in verdict.findings
            ],
        }
        for verdict in result.verdicts
    ]
    document = {
        "gateway": result.name,
        "kept": result.is_kept,
        "seconds": round(result.seconds, 3),
        "broken_off": result.broken_off,
        "rules": rules,
    }
    return json.dumps(document, indent=2, default=str)

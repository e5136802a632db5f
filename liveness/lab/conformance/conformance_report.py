"""The report of a run: text, JSON and JUnit XML."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

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
    """Lines without control characters, which XML cannot hold."""
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
                {**found._asdict(), "frames": [seen.as_json() for seen in found.frames]}
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


def write_junit(result: RunResult, file: Path) -> None:
    """Write JUnit XML: a test case for each rule.

    Raises:
        OSError: The file cannot be written.
    """
    suite = ElementTree.Element("testsuite")
    case = partial(ElementTree.SubElement, suite, "testcase", classname="conformance")
    for verdict in result.verdicts:
        of_rule = case(name=f"G{verdict.rule} {RULES[verdict.rule]}")
        text = "\n".join(_findings(verdict))
        if verdict.outcome == FAIL:
            message = printable(verdict.findings[0].seen)
            ElementTree.SubElement(of_rule, "failure", message=message).text = text
        elif verdict.outcome == NOT_TRIED:
            ElementTree.SubElement(of_rule, "skipped", message=printable(verdict.why))
        elif text:
            ElementTree.SubElement(of_rule, "system-out").text = text
    for line in map(printable, result.broken_off):
        ElementTree.SubElement(case(name=line), "error", message=line)
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.attrib |= {
        "name": f"liveness conformance of {result.name}",
        "tests": str(len(suite)),
        **{name: str(len([*suite.iter(kind)])) for name, kind in counts.items()},
        "time": f"{result.seconds:.3f}",
    }
    ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)

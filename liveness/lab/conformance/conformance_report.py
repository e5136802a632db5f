"""The report of a run: text, JSON and JUnit XML."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from liveness.lab.conformance.conformance_run import RunResult
from liveness.lab.conformance.findings import (
    ADVISED,
    FAIL,
    NOT_TRIED,
    PASS,
    Finding,
    RuleVerdict,
)
from liveness.lab.conformance.tape import Seen, shortened
from liveness.text import printable


def text_report(result: RunResult) -> Iterator[str]:
    """A line for each rule; below one that was not kept, what was seen and the frames."""
    for verdict in result.verdicts:
        label = f"G{verdict.rule}".ljust(4)
        if verdict.outcome == NOT_TRIED:
            yield f"{label} {NOT_TRIED}: {printable(verdict.why)}"
        else:
            yield f"{label} {verdict.outcome:<7}  {verdict.title}"
        for finding in verdict.findings:
            yield from map(printable, _finding_lines(finding))
    for line in result.broken_off:
        yield printable(line)
    counts = Counter(verdict.outcome for verdict in result.verdicts)
    numbers = ", ".join(
        f"{counts[outcome]} {words}"
        for outcome, words in (
            (PASS, "kept"),
            (FAIL, "not kept"),
            (ADVISED, "advised and not kept"),
            (NOT_TRIED, "not tried"),
        )
        if counts[outcome]
    )
    yield f"{result.name}: {numbers}, in {result.seconds:.0f} s"


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield f"     in: {finding.situation}"
    yield f"     seen: {finding.seen}"
    yield f"     expected: {finding.expected}"
    for seen in finding.frames:
        yield f"       {seen.text()}"


def json_report(result: RunResult) -> str:
    """One JSON document."""
    document = {
        "gateway": result.name,
        "kept": result.is_kept,
        "seconds": round(result.seconds, 3),
        "broken_off": result.broken_off,
        "rules": [_as_json(verdict) for verdict in result.verdicts],
    }
    return json.dumps(document, indent=2, default=str)


def _as_json(verdict: RuleVerdict) -> dict[str, object]:
    return {
        "rule": f"G{verdict.rule}",
        "title": verdict.title,
        "verdict": verdict.outcome.lower(),
        "why": verdict.why or None,
        "findings": [
            {
                "situation": finding.situation,
                "seen": finding.seen,
                "expected": finding.expected,
                "frames": [_frame(seen) for seen in finding.frames],
            }
            for finding in verdict.findings
        ],
    }


def _frame(seen: Seen) -> dict[str, object]:
    return {
        "at": round(seen.at, 4),
        "link": seen.link,
        "to": "gateway" if seen.is_sent else "sidecar",
        "frame": shortened(seen.frame),
    }


def write_junit(result: RunResult, file: Path) -> None:
    """Write JUnit XML: a test case for each rule.

    Raises:
        OSError: The file cannot be written.
    """
    failed = [verdict for verdict in result.verdicts if verdict.outcome == FAIL]
    skipped = [verdict for verdict in result.verdicts if verdict.outcome == NOT_TRIED]
    suite = ElementTree.Element(
        "testsuite",
        name=f"liveness conformance of {result.name}",
        tests=str(len(result.verdicts) + len(result.broken_off)),
        failures=str(len(failed)),
        errors=str(len(result.broken_off)),
        skipped=str(len(skipped)),
        time=f"{result.seconds:.3f}",
    )
    for verdict in result.verdicts:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname="conformance",
            name=f"G{verdict.rule} {verdict.title}",
        )
        text = "\n".join(
            line for finding in verdict.findings for line in _finding_lines(finding)
        )
        text = printable_lines(text)
        if verdict.outcome == FAIL:
            failure = ElementTree.SubElement(
                case, "failure", message=printable(verdict.findings[0].seen)
            )
            failure.text = text
        elif verdict.outcome == NOT_TRIED:
            ElementTree.SubElement(case, "skipped", message=printable(verdict.why))
        elif text:
            ElementTree.SubElement(case, "system-out").text = text
    for line in result.broken_off:
        case = ElementTree.SubElement(
            suite, "testcase", classname="conformance", name=printable(line)
        )
        ElementTree.SubElement(case, "error", message=printable(line))
    ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)


def printable_lines(text: str) -> str:
    """Text without control characters, which XML cannot hold; its lines stay."""
    return "\n".join(map(printable, text.split("\n")))

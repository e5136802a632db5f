"""What was found out about each rule, and the verdicts that follow."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liveness.lab.conformance.rules import RULES
from liveness.lab.conformance.tape import Seen

PASS, FAIL, ADVISED, NOT_TRIED = "pass", "FAIL", "advised", "not tried"
# Frames that led to a finding, and findings of one rule that are shown.
MOST_EVIDENCE: Final = 12
MOST_FINDINGS: Final = 5


class BrokeOff(Exception):
    """A situation cannot be played, as what it builds on did not happen."""


class Finding(NamedTuple):
    """A rule that was not kept."""

    situation: str
    seen: str  # what the gateway did
    expected: str
    frames: tuple[Seen, ...]


class RuleVerdict(NamedTuple):
    """The outcome for a rule."""

    rule: int
    outcome: str
    findings: tuple[Finding, ...]
    why: str  # it was not tried

    @property
    def title(self) -> str:
        """The rule's title in the protocol."""
        return RULES[self.rule].title


@dataclass(slots=True)
class Findings:
    """Collects what situations find out."""

    situation: str = "the first link"  # the one that is played now
    failed: dict[int, list[Finding]] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    untried: dict[int, list[str]] = field(default_factory=dict)  # why, by rule
    broken_off: list[str] = field(default_factory=list)  # a line for each situation
    unfinished: set[int] = field(default_factory=set)  # rules of those situations

    def fail(self, rule: int, seen: str, expected: str, frames: list[Seen]) -> None:
        """Note that a rule was not kept; of many times, only the first few."""
        found = self.failed.setdefault(rule, [])
        if len(found) < MOST_FINDINGS:
            evidence = tuple(frames[-MOST_EVIDENCE:])
            found.append(Finding(self.situation, seen, expected, evidence))

    def verdicts(self, wanted: list[int]) -> list[RuleVerdict]:
        """The outcome of each of the rules *wanted*."""
        return [self._verdict(rule) for rule in wanted]

    def _verdict(self, rule: int) -> RuleVerdict:
        found = tuple(self.failed.get(rule, ()))
        if found:
            outcome = ADVISED if RULES[rule].is_advised else FAIL
            return RuleVerdict(rule, outcome, found, "")
        if rule in self.passed and rule not in self.unfinished:
            return RuleVerdict(rule, PASS, (), "")
        reasons = dict.fromkeys(self.untried.get(rule, ["no situation came to it"]))
        return RuleVerdict(rule, NOT_TRIED, (), "; ".join(reasons))

"""The numbered rules of `proto/README.md`, "For gateway authors", and what a run finds out
about each."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from liveness.lab.conformance.tape import Seen

# The texts of the page; a test compares both.
RULES: Final = {
    1: "Hello first",
    2: "Plain msgpack",
    3: "Wait for `welcome`",
    4: "Stay within the limits",
    5: "Read always",
    6: "Frames come in any pieces",
    7: "Ignore what you do not know",
    8: "An error that is not fatal changes nothing",
    9: "Log in each connection",
    10: "Choose conns that never repeat, below 2^53",
    11: "Name the `conn` in every event",
    12: "Collect activity",
    13: "Report only what happened",
    14: "Log out each connection that ends",
    15: "Nothing behind the end",
    16: "Compare before closing",
    17: "Close what a record ends",
    18: "Take a repeat as read",
    19: "Acknowledge",
    20: "Reconnect",
    21: "After `bye`, come back within 1 s",
    22: 'Where the table says "slowly", let the pauses grow to 30 s',
    23: "`replaced` is not answered by a reconnect",
    24: "Serve on without a link",
    25: "Keep your connections while you were shut out",
    26: "Say `fresh: true`",
    27: "Ping to know what is safe",
    28: "Send again",
    29: "Declare",
    30: "Say when connections began",
    31: "Promise `ping`",
    32: "Answer timers",
}
# A gateway may choose not to keep these.
ADVISED_RULES: Final = frozenset({30, 31})

PASS, FAIL, ADVISED, NOT_TRIED = "pass", "FAIL", "advised", "not tried"
# Frames shown before a finding, and findings shown for a rule.
MOST_EVIDENCE: Final = 12
MOST_FINDINGS: Final = 5


class BrokeOff(Exception):
    """A situation cannot be played, as a precondition did not come about."""


class Finding(NamedTuple):
    situation: str
    seen: str  # what the gateway did
    expected: str
    frames: tuple[Seen, ...]


class RuleVerdict(NamedTuple):
    rule: int
    outcome: str
    findings: tuple[Finding, ...] = ()
    why: str = ""  # why it was not tried


class RunResult(NamedTuple):
    name: str
    verdicts: list[RuleVerdict]  # of the rules that were wanted
    failed: frozenset[int]  # all rules that were broken, advised ones too
    broken_off: list[str]
    seconds: float

    @property
    def is_kept(self) -> bool:
        """Whether no rule was broken, and each situation was played to its end."""
        failed = any(verdict.outcome == FAIL for verdict in self.verdicts)
        return not failed and not self.broken_off


@dataclass(slots=True)
class Findings:
    """Collects the findings of situations."""

    situation: str = "the first link"  # the one that is played now
    failed: dict[int, list[Finding]] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    untried: dict[int, list[str]] = field(default_factory=dict)  # why, by rule
    broken_off: list[str] = field(default_factory=list)  # a line for each situation
    unfinished: set[int] = field(default_factory=set)  # rules of those situations

    def fail(self, rule: int, seen: str, expected: str, frames: list[Seen]) -> None:
        """Note that a rule was not kept; only the first few times."""
        found = self.failed.setdefault(rule, [])
        if len(found) < MOST_FINDINGS:
            evidence = tuple(frames[-MOST_EVIDENCE:])
            found.append(Finding(self.situation, seen, expected, evidence))

    def leave_out(self, why: str, *rules: int) -> None:
        for rule in rules:
            self.untried.setdefault(rule, []).append(why)

    def verdict(self, rule: int) -> RuleVerdict:
        if found := self.failed.get(rule):
            outcome = ADVISED if rule in ADVISED_RULES else FAIL
            return RuleVerdict(rule, outcome, tuple(found))
        if rule in self.passed and rule not in self.unfinished:
            return RuleVerdict(rule, PASS)
        reasons = dict.fromkeys(self.untried.get(rule, ["no situation came to it"]))
        return RuleVerdict(rule, NOT_TRIED, why="; ".join(reasons))

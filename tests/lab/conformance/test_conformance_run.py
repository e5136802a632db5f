"""A right gateway keeps all rules; each wrong one breaks exactly the rule that is meant."""

import re
import sys
from typing import Final

import pytest

from liveness.lab.conformance.conformance_run import SITUATIONS, run
from liveness.lab.conformance.rules import (
    ADVISED,
    ADVISED_RULES,
    FAIL,
    NOT_TRIED,
    PASS,
    RULES,
    RunResult,
)
from tests.helpers.tree import ROOT
from tests.lab.conformance.wrong_gateway import FAULTS, INTEGERS

OPTIONS: Final = "--sidecar {socket} --name {name} --port {port}"


async def played(module: str, *rules: int) -> RunResult:
    words = (sys.executable, "-m", *f"{module} {OPTIONS}".split())
    return await run(words, rules=rules)


def test_the_table_of_rules_is_that_of_the_protocol() -> None:
    text = (ROOT / "proto/README.md").read_text()
    found = re.findall(r"^- \*\*G(\d+)\. (.+?)[.,]?\*\*( \(\*advised\*\))?", text, re.M)
    assert {int(number): title for number, title, _ in found} == RULES
    assert {int(number) for number, _, advised in found if advised} == ADVISED_RULES
    assert {rule for each in SITUATIONS for rule in each.rules} == RULES.keys() - {32}


@pytest.mark.long
async def test_the_demos_gateway_keeps_every_rule() -> None:
    result = await played("liveness.lab.demo.gateway")
    outcomes = {verdict.rule: verdict.outcome for verdict in result.verdicts}
    outcomes.pop(32)
    assert outcomes == dict.fromkeys(range(1, 32), PASS), result
    assert result.is_kept


# The run waits some seconds for what these gateways never do.
SLOW: Final = {
    "no-acks", "stands-while-it-writes", "sends-nothing-again", "ends-at-a-refusal",
    "no-logouts", "frames-come-whole", "ignores-gaps",
    "acks-known-kinds-only", "fixed-pauses", "long-pauses",
}  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.long] * (fault in SLOW))
        for fault in FAULTS
    ],
)
async def test_a_fault_breaks_exactly_its_rule(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    rule, _ = FAULTS[fault]
    result = await played(f"tests.lab.conformance.wrong_gateway {fault}", rule)
    assert result.failed == {rule}, result
    (verdict,) = result.verdicts
    assert verdict.outcome == (ADVISED if rule in ADVISED_RULES else FAIL)
    assert verdict.findings[0].frames
    assert result.is_kept == (rule in ADVISED_RULES)


async def test_a_gateway_may_make_integers_of_names_of_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    rules = (12, 13, 16, 17)
    result = await played(f"tests.lab.conformance.wrong_gateway {INTEGERS}", *rules)
    assert [verdict.outcome for verdict in result.verdicts] == [PASS] * len(rules), (
        result
    )


@pytest.mark.long
async def test_a_rule_whose_situation_broke_off_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    result = await played("tests.lab.conformance.wrong_gateway no-acks", 7)
    (verdict,) = result.verdicts
    assert verdict.outcome == NOT_TRIED, "what came before the break was kept"
    assert "broke off: the gateway does not acknowledge" in verdict.why
    assert not result.is_kept

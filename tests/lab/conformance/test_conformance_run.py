"""A right gateway keeps all rules; each wrong one breaks exactly the rule that is meant."""

import json
import os
import re
import sys
from typing import Final

import pytest

from liveness.cli import main
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
from tests.lab.conformance.wrong_gateway import FAULTS

WRONG: Final = "tests.lab.conformance.wrong_gateway"


@pytest.fixture(autouse=True)
def _in_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


async def played(module: str, *rules: int) -> RunResult:
    options = "--sidecar {socket} --name {name} --port {port}"
    words = (sys.executable, "-m", *f"{module} {options}".split())
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
    "no-logouts", "frames-come-whole", "ignores-gaps", "acks-known-kinds-only",
    "fixed-pauses",
}  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.long] * (fault in SLOW))
        for fault in FAULTS
    ],
)
async def test_a_fault_breaks_exactly_its_rule(fault: str) -> None:
    rule, _ = FAULTS[fault]
    result = await played(f"{WRONG} {fault}", rule)
    assert result.failed == {rule}, result
    (verdict,) = result.verdicts
    assert verdict.outcome == (ADVISED if rule in ADVISED_RULES else FAIL)
    assert verdict.findings[0].frames
    assert result.is_kept == (rule in ADVISED_RULES)


@pytest.mark.long
async def test_a_rule_whose_situation_broke_off_is_not_kept() -> None:
    result = await played(f"{WRONG} no-acks", 7)
    (verdict,) = result.verdicts
    assert verdict.outcome == NOT_TRIED, "what came before the break was kept"
    assert "broke off: the gateway does not acknowledge" in verdict.why
    assert not result.is_kept


def test_the_command_says_by_its_exit_code_whether_rules_are_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gateway = f"{sys.executable} -m {WRONG} counts-from-one"
    options = ["--command", f"{gateway} --sidecar {{socket}} --port {{port}}"]
    assert main.main(["conformance", *options, "--json", "--rule", "G9"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"]
    assert main.main(["conformance", *options, "--rule", "G10"]) == 1
    assert capsys.readouterr().out.startswith("G10  FAIL     Choose conns that never")


@pytest.mark.parametrize(
    ("command", "code", "line"),
    [
        ("cat {prot} {port}", os.EX_CONFIG, "and may have no others than {socket}, {name}, {port}"),
        ("sh -c 'echo hm' {port}", 1, "no hello came as 'gw-1'; correct --command. The gateway has ended, exit code 0; its output: hm"),
    ],
    ids=["placeholder", "ended"],
)  # fmt: skip
def test_a_command_that_starts_no_gateway_is_refused_in_one_line(
    command: str, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["conformance", "--command", command]) == code
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert line in said

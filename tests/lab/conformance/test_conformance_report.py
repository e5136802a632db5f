"""The output and the files of the command, and refused options."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from liveness.cli import main
from liveness.lab.conformance.conformance_report import (
    json_report,
    text_report,
)
from liveness.lab.conformance.rules import (
    FAIL,
    NOT_TRIED,
    PASS,
    Finding,
    RuleVerdict,
    RunResult,
)
from liveness.lab.conformance.tape import Seen
from tests.helpers.tree import ROOT
from tests.system.sidecar import eventually

FRAMES: Final = (
    Seen(1.5, 3, True, ("notices", ({"uid": "\x1b[2J<&", "seq": 2},) * 9)),
    Seen(1.6, 3, False, ("keepalive", (b"\x00\x01",), {"conn": (2**62, 1.0)})),
)
RESULT: Final = RunResult(
    "gw-1",
    [
        RuleVerdict(9, PASS, (), ""),
        RuleVerdict(15, FAIL, (Finding("a <day>", "é\x00", "none", FRAMES),), ""),
        RuleVerdict(26, NOT_TRIED, (), "no command"),
    ],
    frozenset({15}),
    ["a night broke off: \x07"],
    2.0,
)


def test_the_text_has_a_line_for_each_rule_and_the_frames_that_led_there() -> None:
    assert [*text_report(RESULT)] == [
        "G9   pass     Log in each connection",
        "G15  FAIL     Nothing behind the end",
        "     in: a <day>",
        "     seen: é\\x00",
        "     expected: none",
        "         1.500 s  link 3  ← notices "
        + '[{"uid": "\\u001b[2J<&", "seq": 2}, '
        + '{"uid": "\\u001b[2J<&", "seq": 2}, {"uid": "\\u001b[2J<&", "seq": 2}, '
        + '"… 6 more"]',
        "         1.600 s  link 3  → keepalive "
        + f'["bytes 0001…"] {{"conn": [{2**62}, 1.0]}}',
        "G26  not tried: no command",
        "a night broke off: \\x07",
        "gw-1: 1 kept, 1 not kept, 1 not tried, in 2 s",
    ]


def test_the_json_is_one_document_with_the_frames() -> None:
    document = json.loads(json_report(RESULT))
    assert not document["kept"]
    passed, failed, untried = document["rules"]
    assert passed["title"] == "Log in each connection"
    assert untried | {"verdict": "not tried", "why": "no command"} == untried
    ((finding,)) = failed["findings"]
    assert {*finding} == {"situation", "seen", "expected", "frames"}
    assert finding["frames"][1].startswith("  1.600 s  link 3  → keepalive")


def test_the_command_runs_a_gateway_and_says_by_its_exit_code_whether_rules_are_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    gateway = f"{sys.executable} -m tests.lab.conformance.wrong_gateway counts-from-one"
    options = ["--command", f"{gateway} --sidecar {{socket}} --port {{port}}"]
    command = ["conformance", *options, "--json"]
    assert main.main([*command, "--rule", "G9"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"]
    assert main.main([*command, "--rule", "G10"]) == 1
    (rule,) = json.loads(capsys.readouterr().out)["rules"]
    assert rule["verdict"] == "fail"
    assert rule["findings"][0]["frames"]


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        ([], 2, "--command requires an argument"),
        (["--command", "cat"], os.EX_CONFIG, "the gateway's command 'cat' needs {port} where"),
        (["--command", "cat {prot} {port}"], os.EX_CONFIG, "and may have no others than {socket}, {name}, {port}"),
        (["--command", "sh -c 'echo hm' {port}"], 1, "no hello came as 'gw-1'; correct --command. The gateway has ended, exit code 0; its output: hm"),
        (["--rule", "G0", "--command", "x"], 2, "'G0' is no rule, G1 to G32"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_to_do(
    options: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["conformance", *options]) == code
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert line in said


def test_a_run_that_is_ended_by_sigterm_ends_the_gateway_too(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    gateway = f"sh -c 'echo $$ > {file}; exec sleep 600' {{port}}"
    run = [sys.executable, "-m", "liveness", "conformance", "--command", gateway]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: file.exists() and bool(file.read_text()))
        process.terminate()
        _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (1, "liveness: ended by SIGTERM\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)

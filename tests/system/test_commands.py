"""`liveness timers` and `liveness gateways` with a sidecar that runs.

What they show of each answer: tests/cli/test_timers_command.py. What they say to each mistake:
tests/service/test_mistakes.py.
"""

import json
from collections.abc import Callable

import pytest

from liveness.cli.main import main
from tests.system.sidecar import Sidecar, eventually

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(sidecar: Sidecar, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(group: str, what: str, *arguments: str) -> tuple[int, str, str]:
        code = main([group, what, "--socket", str(sidecar.socket), *arguments])
        return code, *capsys.readouterr()

    return run


def test_gateways_are_listed_and_forgotten(
    sidecar: Sidecar, name: str, run: Run
) -> None:
    def listed() -> dict[str, str]:
        lines = run("gateways", "list")[1].splitlines()
        return {line.split()[1]: line for line in lines}

    here, gone = f"{name}-here", f"{name}-gone"
    sidecar.gateway(here)
    sidecar.gateway(gone).close()
    eventually(lambda: listed()[gone].startswith("away"))
    lines = listed()
    assert lines[here].startswith(f"linked  {here}  0 users  pid ")
    assert lines[gone].startswith(f"away    {gone}  0 users  seq ")
    assert "  last linked " in lines[gone]
    sidecar.watcher("eye", ack=True)
    watchers = run("gateways", "list", "--role", "watcher", "--json")[1]
    assert json.loads(watchers)["name"] == "eye"
    assert run("gateways", "forget", gone) == (0, f"{lines[gone]}\n", "")
    assert listed().keys() == lines.keys() - {gone}

"""Commands that are asked of a sidecar that runs, or was killed.

What they show of each answer: `tests/cli`. What they say to each mistake:
`tests/service/test_mistakes.py`.
"""

import json
import sys
from collections.abc import Callable

import pytest

from liveness.cli.main import main
from tests.helpers.processes import environment, ran, succeeded
from tests.system.sidecar import Sidecar, eventually

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(sidecar: Sidecar, what: str, *arguments: str) -> tuple[int, str, str]:
        code = main([*what.split(), f"--socket={sidecar.socket}", *arguments])
        return code, *capsys.readouterr()

    return run


def test_the_log_escapes_what_the_locale_cannot_show(sidecar: Sidecar) -> None:
    sidecar.gateway("шлюз").apply("login", "Zoë/张")
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    log = (sys.executable, "-m", "liveness", "log", "--state", str(sidecar.state))
    for options, shown in (([], r"Zo\xeb/\u5f20"), (["--json"], r'"Zo\u00eb/\u5f20"')):
        assert shown in succeeded(ran(*log, *options, env=environment(**ascii_only)))


def test_gateways_are_listed_and_forgotten(
    sidecar: Sidecar, name: str, run: Run
) -> None:
    def listed() -> dict[str, str]:
        lines = run(sidecar, "gateways list")[1].splitlines()
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
    watchers = run(sidecar, "gateways list", "--role", "watcher", "--json")[1]
    assert json.loads(watchers)["name"] == "eye"
    assert run(sidecar, "gateways forget", gone) == (0, f"{lines[gone]}\n", "")
    assert listed().keys() == lines.keys() - {gone}

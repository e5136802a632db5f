"""`liveness timers` and `liveness gateways` with a sidecar that runs.

What they show of each answer: tests/cli/test_timers_command.py. What they say to each mistake:
tests/service/test_mistakes.py.
"""

import json
from collections.abc import Callable

import pytest

from liveness.cli.main import main
from tests.system.sidecar import Sidecar, eventually

# None of them would do as it is in a URL or on a command line.
ODD_KEYS = ["a key/with?odd&=#%+;'\\ заказ 🕒", "--json"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(sidecar: Sidecar, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(group: str, what: str, *arguments: str) -> tuple[int, str, str]:
        code = main([group, what, "--socket", str(sidecar.socket), *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("key", ODD_KEYS)
def test_a_timer_is_shown_retried_and_cancelled_by_key(
    sidecar: Sidecar, name: str, run: Run, key: str
) -> None:
    gateway = sidecar.gateway(name)
    gateway.apply("after", key, 3_600, {"payload": "to do", "ext": key})
    listed = run("timers", "list", "--gateway", name, f"--ext={key}", "--json")[1]
    assert json.loads(listed)["key"] == key
    shown = run("timers", "show", "--json", "--", key)[1]
    assert json.loads(shown)["payload"] == "to do"
    assert run("timers", "retry", "--", key)[0] == 0
    (record,) = gateway.take(1)
    assert record["key"] == key
    code, line, said = run("timers", "cancel", "--gateway", name, "--", key)
    assert (code, said) == (0, "")
    assert f"  cancelled  {name}  " in line


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

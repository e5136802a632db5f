"""Commands that are asked of a sidecar that runs, or was killed.

What they show of each answer: `tests/cli`. What they say to each mistake:
`tests/service/test_mistakes.py`.
"""

import json
import re
import sys
from collections.abc import Callable

import pytest

from liveness.cli.main import main
from tests.helpers.processes import environment, ran, succeeded
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

Run = Callable[..., tuple[int, str, str]]
CLOCK = r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d"  # midnight may lie between


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(sidecar: Sidecar, what: str, *arguments: str) -> tuple[int, str, str]:
        code = main([*what.split(), f"--socket={sidecar.socket}", *arguments])
        return code, *capsys.readouterr()

    return run


def acted(sidecar: Sidecar) -> Sidecar:
    """eve fell silent, ada logged out, bob moved and is online, so is an integer."""
    one, two = sidecar.gateway("gw-1"), sidecar.gateway("gw-2")
    whole_h = {"timeout": 3_600}
    one.send("login", ["eve", "bob", "ada"], {"conn": [1, 2, 3], **whole_h})
    one.apply("logout", "ada", {"conn": 3})
    two.send("login", ["bob", 7], {"conn": [1, 2], **whole_h})
    two.apply("after", "order:17", 0.1, {"payload": "=1+1\x1b[31m", "ext": "eve"})
    eventually(lambda: sidecar.metric("liveness_log_seq") == 7)
    # Only behind all else, however long that took: now the sidecar's timeout holds.
    one.send("login", "eve", {"conn": 1})
    eventually(lambda: sidecar.metric("liveness_log_seq") == 8)
    return sidecar


def test_users_are_explained_by_the_sidecar(start: Start, run: Run) -> None:
    sidecar = acted(start(1, flush_s=0.1))
    code, sentence, said = run(sidecar, "explain", "eve")
    assert (code, said) == (0, "")
    found = json.loads(run(sidecar, "explain", "eve", "--json")[1])
    silence = found["records"][0]["silence"]
    assert silence >= 1
    assert re.fullmatch(
        rf"offline at {CLOCK} after {silence:.1f} s of silence; last heard: login at "
        rf"{CLOCK} through gw-1\n",
        sentence,
    )
    assert found["told"] == sentence.strip()
    for door in ("http", "admin"):
        response, body = sidecar.ask(door, "GET", "/v1/users/eve")
        assert (response.status, json.loads(body)) == (200, found)
    assert re.fullmatch(
        rf"online through gw-2 \(connection 1\); last heard: login at {CLOCK}, \S+ s ago; "
        rf"offline in 59 min \d+ s unless it is heard; connected {CLOCK}\n",
        run(sidecar, "explain", "bob")[1],
    )
    assert json.loads(run(sidecar, "explain", "int:7", "--json")[1])["uid"] == "7"
    nobody = ("explain", "8"), ("explain", "8", "--json")
    assert [run(sidecar, *words)[0] for words in nobody] == [1, 1]
    assert "never heard of" in run(sidecar, *nobody[0])[1]
    sidecar.kill()
    code, shown, said = run(sidecar, "explain", "eve")
    assert (code, shown) == (1, "")
    assert said.startswith(f"liveness: no sidecar at {sidecar.socket}: start")
    sidecar.start()
    # Its gateway is not there, and so has said nothing of bob.
    shown = run(sidecar, "explain", "bob")[1]
    assert "; not heard since the sidecar restarted; " in shown


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

"""`liveness timers` and a running sidecar: a person looks for timers, and has their way."""

import json
from pathlib import Path
from typing import Any

import pytest

from liveness.cli import main
from tests.e2e.sidecar import Sidecar

ODD_KEYS = ["a key/with?odd&=#%+;", "заказ 17 🕒", "-", "--json", "none", "a\\b'"]


@pytest.fixture
def run(sidecar: Sidecar, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(what: str, *arguments: str) -> tuple[int, str, str]:
        place = ["--socket", str(sidecar.socket)]
        code = main(["timers", what, *place, *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("key", ODD_KEYS)
def test_a_timer_is_listed_shown_retried_and_cancelled_by_its_key(
    sidecar: Sidecar, name: str, run: Any, key: str
) -> None:
    gateway = sidecar.gateway(name)
    gateway.send("after", key, 3_600, {"payload": "to do", "ext": key})
    gateway.settle()
    listed = run("list", "--gateway", name, f"--ext={key}", "--json")[1]
    assert json.loads(listed)["key"] == key
    shown = run("show", "--json", "--", key)[1]
    assert json.loads(shown)["payload"] == "to do"
    assert run("retry", "--", key)[0] == 0
    (record,) = gateway.take(1)
    assert record["key"] == key
    code, line, told = run("cancel", "--gateway", name, "--", key)
    assert (code, told) == (0, "")
    assert f"  cancelled  {name}  " in line


def test_a_list_goes_over_pages(sidecar: Sidecar, name: str, run: Any) -> None:
    gateway = sidecar.gateway(name)
    for n in range(250):
        gateway.send("after", f"n{n}", 3_600)
    gateway.settle()

    def keys(*limit: str) -> list[str]:
        lines = run("list", "--gateway", name, *limit)[1].splitlines()
        return [line.split()[-1] for line in lines]

    newest_first = [f"n{n}" for n in reversed(range(250))]
    assert keys() == newest_first[:100]
    assert keys("--limit", "230") == newest_first[:230]
    assert keys("--limit", "1000") == newest_first


def test_what_cannot_be_is_one_line_and_1(
    sidecar: Sidecar, name: str, run: Any
) -> None:
    for gateway in (f"{name}-x", f"{name}-y"):
        client = sidecar.gateway(gateway)
        client.send("after", name, 3_600)
        client.settle()
    code, _, told = run("cancel", name)
    assert code == 1
    assert f"{name}-x (pending), {name}-y (pending); say whose is meant" in told
    assert run("cancel", name, "--gateway", f"{name}-x")[0] == 0
    code, shown, told = run("cancel", name, "--gateway", f"{name}-x")
    assert (code, shown) == (1, "")
    assert told == (
        f"liveness: the timer '{name}' of '{name}-x' is cancelled; only one that is "
        "pending or fired can be cancelled\n"
    )
    assert run("retry", "nothing", "--gateway", name)[0] == 1
    assert run("show", "nothing")[0] == 1


def test_the_sidecar_counts_what_an_operator_cancelled(
    sidecar: Sidecar, name: str, run: Any
) -> None:
    gateway = sidecar.gateway(name)
    gateway.send("after", "k", 3_600)
    gateway.settle()
    before = sidecar.metric("liveness_timers", state="cancelled")
    run("cancel", "k", "--gateway", name)
    assert sidecar.metric("liveness_timers", state="cancelled") == before + 1


def test_no_file_is_made_by_asking(tmp_path: Path) -> None:
    assert main(["timers", "list", "--socket", str(tmp_path / "gateway.sock")]) == 1
    assert [*tmp_path.iterdir()] == []

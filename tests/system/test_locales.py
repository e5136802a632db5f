"""A sidecar and its commands in a locale that is not UTF-8."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.processes import environment, ran, succeeded
from tests.system.sidecar import Sidecar

# ASCII, without what Python does about that: every other locale can show more. Debian has
# no others by itself.
LOCALE: Final = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
USER, USER_SHOWN = "Zoë/张", r"Zo\xeb/\u5f20"
GATEWAY, GATEWAY_SHOWN = "шлюз", r"\u0448\u043b\u044e\u0437"
TOKEN: Final = "correct-horse/battery+staple=="


class LocalSidecar(Sidecar):
    def environment(self) -> dict[str, str]:
        return super().environment() | LOCALE


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    folder = tmp_path_factory.mktemp("s")
    token = folder / "token"
    token.write_text(TOKEN, encoding="utf-8")
    token.chmod(0o600)
    with LocalSidecar(folder, http_token_file=token) as running:
        gateway = running.start().gateway(GATEWAY)
        gateway.send("login", [USER, 7])
        gateway.apply("after", USER, 3_600)
        yield running


def printed(*arguments: str | Path) -> str:
    """The output of a command, in that locale."""
    command = (sys.executable, "-m", "liveness", *arguments)
    done = ran(*command, env=environment(**LOCALE))
    assert "Traceback" not in done.stderr, done.stderr
    return succeeded(done)


def test_the_page_is_as_it_is_written(sidecar: Sidecar) -> None:
    _, body = sidecar.ask("admin", "GET", "/", accept="text/html")
    assert "the host\u2019s time zone" in body.decode()


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["log", "--state"], USER_SHOWN),
        (["watch", "--after", "0", "--count", "2", "--socket"], USER_SHOWN),
        (["explain", "int:7", "--socket"], GATEWAY_SHOWN),
        (["log", "--json", "--state"], r'"uid":"Zo\u00eb/\u5f20"'),
    ],
    ids=lambda val: val[0] if isinstance(val, list) else "",
)
def test_a_command_escapes_what_the_locale_cannot_show(
    sidecar: Sidecar, command: list[str], shown: str
) -> None:
    is_file = command[-1] == "--state"
    assert shown in printed(*command, sidecar.state if is_file else sidecar.socket)

"""What the tests of commands that ask an `admin.sock` share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from liveness.cli.main import main
from tests.helpers.admin_server import Admin, answering

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    with answering(tmp_path, {}) as server:
        yield server


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `liveness` with some arguments; exit code, stdout and stderr."""
    return lambda *words: (main([*map(str, words)]), *capsys.readouterr())


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path, command: Command) -> Any:
    """Runs one of the commands of the module's `GROUP`."""
    place = ["--socket", tmp_path / "gateway.sock"]
    return lambda what, *words: command(request.module.GROUP, what, *place, *words)

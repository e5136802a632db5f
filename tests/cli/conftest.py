"""What the tests of commands that ask an `admin.sock` share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from liveness.cli.main import main
from tests.helpers.admin_server import Admin, answering


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    with answering(tmp_path, {}) as server:
        yield server


@pytest.fixture
def run(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs one of the commands of the module's `GROUP`; exit code, stdout and stderr."""

    def run(what: str, *arguments: str) -> tuple[int, str, str]:
        place = ["--socket", str(tmp_path / "gateway.sock")]
        code = main([request.module.GROUP, what, *place, *arguments])
        return code, *capsys.readouterr()

    return run

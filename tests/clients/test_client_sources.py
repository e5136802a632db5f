"""What one reads first of each client stays small: its calls, and its gateway."""

from pathlib import Path
from typing import Final

import pytest

from tests.clients.programs import CLIENTS
from tests.helpers.tree import ROOT

MOST_LINES: Final = 400
MOST_GATEWAY_LINES: Final = 100


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_small(name: str) -> None:
    folder = ROOT / "proto/clients" / name
    assert lines(folder / CLIENTS[name].source) <= MOST_LINES
    assert lines(folder / CLIENTS[name].example) <= MOST_GATEWAY_LINES

"""The run whose history is changed."""

from copy import deepcopy

import pytest

from tests.promises.histories import PLAN, gateway
from tests.promises.run_history import History
from tests.simulation.run import run


@pytest.fixture(scope="package")
def kept() -> History:
    history = run(PLAN)
    gateway(history).hello["ping"] = 0.5  # it promised to ping twice a second
    return history


@pytest.fixture
def history(kept: History) -> History:
    return deepcopy(kept)

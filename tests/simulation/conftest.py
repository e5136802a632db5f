"""A folder for what all processes of a test run count."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def tally_folder(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """One for each file of tests."""
    own = tmp_path_factory.getbasetemp()
    of_all = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = of_all / request.path.stem
    folder.mkdir(exist_ok=True)
    return folder

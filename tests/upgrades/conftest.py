"""The last release, beside the version that is tested."""

from pathlib import Path

import pytest

from tests.system.conftest import make
from tests.upgrades.releases import RELEASES, export

__all__ = ["make"]  # a fixture


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the last release. This Python and these packages run it, uncompiled."""
    release = RELEASES[-1]
    return export(release, tmp_path_factory.mktemp("releases") / release.tag)

"""Earlier releases: which commits they are, and their files.

The ids are here because tags may be missing, as in a shallow clone of CI. A release gets
its line in the commit after it.
"""

import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.helpers.needs import require
from tests.helpers.tree import ROOT


class Release(NamedTuple):
    """A released version, and the full id of its commit."""

    version: str
    commit: str

    @property
    def tag(self) -> str:
        """What the commit is tagged with."""
        return f"v{self.version}"


# The last one is what an upgrade to this version begins with.
RELEASES: Final = (Release("0.1.0", "db31186c6056c673ed4520edc7045127033b2542"),)


def export(release: Release, folder: Path) -> Path:
    """Put the files of a release into a new folder; skip the test if git lacks them."""
    git = [require("git"), "-C", str(ROOT)]
    has_it = [*git, "cat-file", "-e", release.commit]
    if subprocess.run(has_it, capture_output=True, check=False).returncode:
        pytest.skip(f"{release.tag} is not here: git fetch origin {release.commit}")
    folder.mkdir()
    archive = [*git, "archive", release.commit]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as made:
        subprocess.run(["tar", "-x", "-C", folder], stdin=made.stdout, check=True)
    assert made.returncode == 0
    return folder

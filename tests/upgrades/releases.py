"""Earlier releases: which commits they are, and their files.

The ids are here because tags may be missing, as in a shallow clone of CI. A release gets
its line in the commit after it.
"""

import fcntl
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.helpers.needs import require
from tests.helpers.processes import ran, succeeded
from tests.helpers.tree import ROOT


class Release(NamedTuple):
    """A released version, and the full id of its commit."""

    version: str
    commit: str

    @property
    def tag(self) -> str:
        """The tag of the commit."""
        return f"v{self.version}"


# The last one is what an upgrade to this version begins with.
RELEASES: Final = (Release("0.1.0", "db31186c6056c673ed4520edc7045127033b2542"),)


def export(release: Release, folder: Path) -> Path:
    """Put the files of a release into a new folder; skip the test if they cannot be had.

    A shallow clone, as in CI, gets the commit from where it was cloned.
    """
    git = [require("git"), f"--git-dir={ROOT / '.git'}"]
    with Path(__file__).open() as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ran(*git, "cat-file", "-e", release.commit).returncode:
            fetched = ran(*git, "fetch", "-q", "--depth=1", "origin", release.commit)
            if fetched.returncode:
                pytest.skip(f"git lacks {release.tag}: {fetched.stderr.strip()}")
    folder.mkdir()
    archive = Path(f"{folder}.tar")
    succeeded(ran(*git, "archive", f"--output={archive}", release.commit))
    succeeded(ran("tar", "-xf", archive, "-C", folder))
    return folder

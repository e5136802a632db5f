"""The list of releases has what is tagged, and what the changelog describes."""

from liveness import __version__
from tests.helpers.needs import require
from tests.helpers.processes import ran
from tests.helpers.tree import ROOT
from tests.upgrades.releases import RELEASES


def test_tags_are_at_the_listed_commits() -> None:
    ids = "%(refname:strip=2) %(objectname) %(*objectname)"  # of the tag, of its commit
    git = [require("git"), f"--git-dir={ROOT / '.git'}"]
    done = ran(*git, "for-each-ref", f"--format={ids}", "--merged=HEAD", "refs/tags/v*")
    tagged = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()}
    tagged.pop(f"v{__version__}", None)  # which no file in it can name
    listed = {release.tag: release.commit for release in RELEASES}
    assert tagged.items() <= listed.items()

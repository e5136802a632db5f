"""What has changed of late: so the gate leaves out what nothing can have broken."""

import subprocess
from pathlib import Path
from typing import Final

COMMITS: Final = 25


def git(root: Path, *words: str) -> list[str]:
    """The words that a git command prints about a project; none where it fails."""
    command = ["git", "-C", str(root), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.split()


def changed(root: Path) -> set[str] | None:
    """Files that differ from the last tag, or from 25 commits ago if that is later.

    None where there is no history to look into, as in a shallow clone.
    """
    if git(root, "rev-parse", "--is-shallow-repository") != ["false"]:
        return None
    last = f"--max-count={COMMITS + 1}"
    commits = git(root, "rev-list", "--first-parent", last, "HEAD")
    tag = git(root, "describe", "--tags", "--abbrev=0")
    tagged = git(root, "rev-list", "--no-walk", *tag)
    since = next((commit for commit in commits if commit in tagged), commits[-1])
    return {*git(root, "diff", "--name-only", since)}

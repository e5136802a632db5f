"""What has changed of late: so the gate leaves out what nothing can have broken."""

import re
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
    since = _since(root)
    return None if since is None else {*git(root, "diff", "--name-only", since)}


def changed_lines(root: Path) -> dict[str, set[int]] | None:
    """As `changed`, the lines of each file that are new or other, by their numbers now."""
    if (since := _since(root)) is None:
        return None
    lines = dict[str, set[int]]()
    command = ["git", "-C", str(root), "diff", "-U0", "--no-color", since]
    diff = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    file = ""
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            file = line[6:]
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(found[1]), int(found[2] or 1)
            lines.setdefault(file, set()).update(range(first, first + count))
    return lines


def _since(root: Path) -> str | None:
    if git(root, "rev-parse", "--is-shallow-repository") != ["false"]:
        return None
    last = f"--max-count={COMMITS + 1}"
    commits = git(root, "rev-list", "--first-parent", last, "HEAD")
    tag = git(root, "describe", "--tags", "--abbrev=0")
    tagged = git(root, "rev-list", "--no-walk", *tag)
    return next((commit for commit in commits if commit in tagged), commits[-1])

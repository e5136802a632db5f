"""Is there a secret in what git tracks, or in an sdist? detect-secrets says.

It asks nobody whether a secret is a live one. Of the vectors, which are bytes written as
hex, it is not asked whether their digits look drawn by chance: all do. All else is asked
of them, too.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.audit.verdict import Verdict
from tests.tree import tracked

VECTORS: Final = "proto/vectors/"
HOOK: Final = [
    sys.executable,
    *(
        "-c",
        "import sys; from detect_secrets.pre_commit_hook import main; sys.exit(main())",
    ),
    *("--no-verify", "--json"),
]
AS_HEX: Final = ("--disable-plugin", "HexHighEntropyString")


def look(root: Path) -> Verdict:
    """Scan every file of the repository or sdist at *root*, as it is now."""
    there = tracked(root)
    vectors = [name for name in there if name.startswith(VECTORS)]
    others = [name for name in there if not name.startswith(VECTORS)]
    return Verdict(
        f"secrets in {len(there)} files of the project:",
        (*found(root, others), *found(root, vectors, *AS_HEX)),
    )


def found(root: Path, names: list[str], *options: str) -> list[str]:
    """What looks like a secret in these files."""
    said = subprocess.run(
        [*HOOK, *options, "--", *names],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode == 0:
        return []
    if not said.stdout:
        raise RuntimeError(f"detect-secrets has failed: {said.stderr}")
    return [
        f"{name}:{one['line_number']} looks like a secret ({one['type']}): if it is one, "
        "revoke it, and take it out of the history"
        for name, several in json.loads(said.stdout)["results"].items()
        for one in several
    ]

"""Is a locked package known to be vulnerable? pip-audit asks the package index.

An index that does not know, a mirror say, answers as if a package did not exist; pip-audit
then skips it and finds nothing. What was not answered is a fault here.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.audit.verdict import Verdict

REMEDY: Final = (
    "nothing is known of them: run this where the package index itself can be reached "
    "(neither a mirror nor offline), and see what pip is configured to ask"
)
LIMIT_S: Final = 600


def look(locks: Sequence[Path]) -> Verdict:
    """Ask about every package of these locks."""
    asked = [option for lock in locks for option in ("-r", str(lock))]
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip"]
    said = subprocess.run(
        [*command, "--progress-spinner", "off", "--format", "json", *asked],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return judged(said.stdout, said.stderr)


def judged(report: str, complaint: str) -> Verdict:
    """What pip-audit has said.

    Args:
        report: Its JSON; nothing, if it could not do its work.
        complaint: What it said besides.
    """
    about = "known vulnerabilities of the locked packages:"
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except ValueError:
        last = (complaint.strip().splitlines() or ["it said nothing"])[-1]
        return Verdict(about, (f"pip-audit could not ask ({last:.200}); {REMEDY}",))
    unanswered = [one for one in packages if "skip_reason" in one]
    faults = [
        f"{one['name']} {one['version']}: {bug['id']}; "
        + (
            f"update to {' or '.join(bug['fix_versions'])}"
            if bug["fix_versions"]
            else "there is no version without it yet: do without the package"
        )
        for one in packages
        for bug in one.get("vulns", [])
    ]
    if unanswered:
        why = unanswered[0]["skip_reason"]
        faults.append(
            f"of {len(unanswered)} among {len(packages)} packages there was no answer "
            f"(the first: {why}); {REMEDY}"
        )
    if not packages:
        faults.append("pip-audit found no package in the locks")
    return Verdict(
        f"known vulnerabilities of {len(packages) - len(unanswered)} locked packages:",
        tuple(faults),
    )

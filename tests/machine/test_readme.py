"""What README has a newcomer type, on a machine that has just what README asks for.

That is the smallest Debian 12 with those packages, an ordinary user, and a small temporary
folder. The clone is what is committed.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.helpers.needs import require_root
from tests.helpers.pages import MANUAL, shell_lines
from tests.helpers.processes import succeeded
from tests.helpers.tree import ROOT
from tests.machine.bases import base, unpacked, wheels
from tests.machine.nspawn import run_in
from tests.machine.podman import line_of

# The first test waits for the base, which is fetched if the cache has none.
pytestmark = [pytest.mark.machine, pytest.mark.timeout(2_200)]

README: Final = "README.md"
USER: Final = "ada"
TEMPORARY: Final = "/tmp:mode=1777,size=1G"  # as README says
LEFT_MIB: Final = 300
# The tests on two cores that others use, too.
TEST_S: Final = 2_000.0
# What only root can do, or what a package is missing for, which is named.
SKIPPED: Final = re.compile(
    r"apt install [a-z0-9-]+|only root|no filesystem can be mounted"
)

Type = Callable[[str], str]


@pytest.fixture(scope="module")
def type_in() -> Iterator[Type]:
    """Types lines into a shell of the user, in a clone; what they print."""
    require_root()
    (packages,) = re.findall(r"On\s+Debian: `apt install ([^`]+)`", MANUAL[README])
    places = {"/source": ROOT, "/wheels": wheels([ROOT / "requirements/dev.lock"])}
    given = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
    with unpacked(base(*packages.split())) as root:
        # What any Debian has that was not made for a container.
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        # Git trusts no clone of another user.
        (root / "etc/gitconfig").write_text("[safe]\ndirectory = *\n")

        def typed(lines: str, user: str = USER) -> str:
            options = (f"--user={user}", f"--tmpfs={TEMPORARY}")
            command = ("bash", "-euo", "pipefail", "-c", lines)
            done = run_in(
                root, options, *command, read_only=places, given=given, within_s=TEST_S
            )
            return succeeded(done)

        typed(f"useradd --create-home {USER}", user="root")
        typed("git clone --quiet /source ~/liveness")
        yield lambda lines: typed(f"cd ~/liveness; {lines}")


def demos(page: str) -> list[str]:
    lines = [line.removeprefix(".venv/bin/") for line in shell_lines(page)]
    return [line for line in lines if re.match("make demo$|liveness demo ", line)]


def shortened(demo: str) -> str:
    """The same demo in a third of its time."""
    if demo == "make demo":
        return 'make demo ARGS="--seconds 4 --timeout 1 --users 20"'
    return re.sub(
        r"""(--seconds |--timeout |["',] ?)(\d+)""",
        lambda found: f"{found[1]}{int(found[2]) / 3:.2f}",
        demo,
    )


@pytest.mark.parametrize("line", demos(README))
def test_the_demos_end_well(type_in: Type, line: str) -> None:
    line = shortened(line.replace("liveness demo", ".venv/bin/liveness demo"))
    assert "faults: early 0, missed 0, false 0" in type_in(line)


def test_a_sidecar_is_found_as_it_says(type_in: Type) -> None:
    serve, export = line_of(README, "make serve"), line_of(README, "export ")
    status = line_of(README, ".venv/bin/liveness status")
    shown = type_in(
        f"{serve} 2>/dev/null & {export}; until {status}; do sleep 0.1; done; kill %1"
    )
    assert re.search(r"^ready +yes$", shown, re.M)
    assert ".local" not in type_in("ls -A ~")


def test_the_tests_pass_and_leave_little(type_in: Type) -> None:
    lines = f"{line_of(README, 'make test')}; echo; du -sm /tmp"
    shown, _, left = type_in(lines).rpartition("\n\n")
    assert int(left.split()[0]) < LEFT_MIB
    skipped = [line for line in shown.splitlines() if line.startswith("SKIPPED")]
    assert [line for line in skipped if not SKIPPED.search(line)] == []
    assert "to have those that were skipped: apt install " in shown

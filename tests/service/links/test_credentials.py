"""The credentials of a peer, by the kernel."""

import subprocess
import sys
from typing import Final

import pytest

from tests.helpers.needs import as_root

PROGRAM: Final = """
import os, socket, sys
from liveness.service.links.credentials import peer_of
os.setgroups(range(1_000, 1_000 + int(sys.argv[1])))
ours, theirs = socket.socketpair()
peer = peer_of(ours)
print(sorted(peer.groups - {os.getgid()}) == os.getgroups(), peer.pid == os.getpid())
"""

LOOKS_UP: Final = """
import os, resource
from contextlib import suppress
from liveness.errors import StartError
from liveness.service.links.credentials import gid_of
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
with suppress(OSError):
    while True:
        os.dup(0)
try:
    gid_of("root", "socket.group")
except StartError as error:
    print(error)
"""


@as_root
@pytest.mark.parametrize("groups", [0, 1, 64, 65, 300, 65_536])
def test_all_groups_of_a_peer_are_known_however_many(groups: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(groups)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "True True\n", ran.stderr


def test_a_name_that_cannot_be_looked_up_for_want_of_files_is_not_called_unknown() -> (
    None
):
    ran = subprocess.run(
        [sys.executable, "-c", LOOKS_UP], capture_output=True, text=True, check=True
    )
    assert ran.stdout == (
        "socket.group names the group 'root', which cannot be looked up (Too many open "
        "files): raise the limit of open files, or end some connections\n"
    ), ran.stderr

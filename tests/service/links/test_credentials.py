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


@as_root
@pytest.mark.parametrize("groups", [0, 1, 64, 65, 300, 65_536])
def test_all_groups_of_a_peer_are_known_however_many(groups: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(groups)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "True True\n", ran.stderr

"""Who is at the other end, as the kernel has it."""

import os
import subprocess
import sys
from typing import Final

import pytest

PROGRAM: Final = """
import os, socket, sys
from liveness.service.peers import peer_of
os.setgroups(range(1_000, 1_000 + int(sys.argv[1])))
ours, theirs = socket.socketpair()
peer = peer_of(ours)
print(sorted(peer.groups - {os.getgid()}) == os.getgroups(), peer.pid == os.getpid())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have other groups")
@pytest.mark.parametrize("groups", [0, 1, 64, 65, 300, 65_536])
def test_all_groups_of_a_peer_are_known_however_many(groups: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(groups)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "True True\n", ran.stderr

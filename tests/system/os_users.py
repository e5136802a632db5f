"""Users of this host who connect: processes that really are theirs.

Whom a connection belongs to is settled when it is made. So a process that has become a
user connects, and hands the socket over; what is sent on it then stays that user's.
"""

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

# Without an entry in any database.
SOMEBODY: Final = 54_321
CREW: Final = 34_567  # a group

# The folder is entered while it is still allowed: those above it may be private.
_CONNECT: Final = """
import os, socket, sys
channel, folder, name, uid, gid, *groups = sys.argv[1:]
os.chdir(folder)
os.setgroups([int(group) for group in groups])
os.setresgid(int(gid), int(gid), int(gid))
os.setresuid(int(uid), int(uid), int(uid))
with socket.socket(fileno=int(channel)) as channel, socket.socket(socket.AF_UNIX) as sock:
    try:
        sock.connect(name)
    except OSError as error:
        channel.send(error.errno.to_bytes(2))
    else:
        socket.send_fds(channel, [b"connected"], [sock.fileno()])
"""


class Person(NamedTuple):
    """A user with a group of its own and others."""

    unix_user: int
    gid: int
    groups: tuple[int, ...] = ()

    def connect(self, path: Path) -> socket.socket:
        """A connection of this user's to the socket at *path*.

        Raises:
            OSError: The kernel does not let this user connect.
        """
        ours, theirs = socket.socketpair()
        with closing(ours):
            with theirs:
                told: list[object] = [theirs.fileno(), path.parent, path.name]
                told += [self.unix_user, self.gid, *self.groups]
                process = subprocess.run(
                    [sys.executable, "-I", "-c", _CONNECT, *map(str, told)],
                    pass_fds=[theirs.fileno()],
                    check=True,
                    timeout=20,
                )
            assert process.returncode == 0
            data, fds, _flags, _address = socket.recv_fds(ours, 16, 1)
        if not fds:
            number = int.from_bytes(data)
            raise OSError(number, os.strerror(number))
        return socket.socket(fileno=fds[0])


def runs_as(person: Person) -> list[str]:
    """The command under which a command runs as this user.

    It may read whatever root may, as the checkout may be in a private folder; it may
    write, connect to and give away no more than any user.
    """
    groups = ",".join(map(str, person.groups))
    return [
        "setpriv",
        f"--reuid={person.unix_user}",
        f"--regid={person.gid}",
        f"--groups={groups}" if groups else "--clear-groups",
        "--bounding-set=-all,+dac_read_search",
        "--inh-caps=-all,+dac_read_search",
        "--ambient-caps=-all,+dac_read_search",
    ]

"""Which devices of each user are online.

A uid that contains the separator is a device of the user in front of it: with "/", the uid
"ada/phone" is a device of the user "ada". The first separator counts. A uid without one, or
that begins with it, is the name of a user, and stands for a device without a name; so is an
integer.

`_devices.pyx` does the same, compiled. A test compares the two step by step.
"""

from itertools import islice
from typing import Final

from liveness.core.records import Uid

MAX_SEPARATOR_CHARS: Final = 3


def user_of(uid: Uid, separator: str) -> Uid:
    """The user to which a uid belongs."""
    if isinstance(uid, int):
        return uid
    return uid.partition(separator)[0] or uid


class Devices:
    """The devices that are online, by user.

    Args:
        separator: 1 to 3 characters.
    """

    def __init__(self, separator: str) -> None:
        self._separator = separator
        self._by_user: dict[Uid, dict[Uid, None]] = {}

    def __len__(self) -> int:
        """How many users have a device online."""
        return len(self._by_user)

    def add(self, uid: Uid) -> int:
        """Add a device; return how many its user has now."""
        devices = self._by_user.setdefault(user_of(uid, self._separator), {})
        devices[uid] = None
        return len(devices)

    def remove(self, uid: Uid) -> int:
        """Remove a device; return how many its user still has."""
        user = user_of(uid, self._separator)
        devices = self._by_user[user]
        del devices[uid]
        if not devices:
            del self._by_user[user]
        return len(devices)

    def count(self, uid: Uid) -> int:
        """How many devices the user of a device has."""
        return len(self._by_user[user_of(uid, self._separator)])

    def of(self, user: Uid, limit: int) -> list[Uid]:
        """The uids of a user's devices, at most *limit*, in the order of their logins."""
        return list(islice(self._by_user.get(user, ()), limit))

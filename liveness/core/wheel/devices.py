"""Which devices of each user are online.

A uid that contains the separator is a device of the user in front of it: with "/", the uid
"ada/phone" is a device of the user "ada". The first separator counts. A uid without one, or
that begins with it, is the name of a user, and stands for a device without a name; so is an
integer, for a separator has no digits.

The compiled wheel has these objects too: they are made at logins and offlines, and only if
a separator is set.
"""

from itertools import islice
from typing import Final

from liveness.core.records import Uid, identity

MAX_SEPARATOR_CHARS: Final = 3


def user_of(uid: Uid, separator: str) -> Uid:
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
        # By the identity of the user. Most have one device, which then stands for itself.
        self._by_user: dict[str, Uid | dict[Uid, None]] = {}

    def __len__(self) -> int:
        """How many users have a device online."""
        return len(self._by_user)

    def add(self, uid: Uid) -> tuple[int, int]:
        user = user_of(uid, self._separator)
        devices = self._by_user.setdefault(identity(user), uid)
        if devices is uid:
            return _size_of(user, uid), 1
        if not isinstance(devices, dict):
            self._by_user[identity(user)] = devices = {devices: None}
        devices[uid] = None
        return _size_of(user, uid), len(devices)

    def remove(self, uid: Uid) -> tuple[int, int]:
        """Remove a device; return how many its user still has."""
        user = user_of(uid, self._separator)
        devices = self._by_user[identity(user)]
        if not isinstance(devices, dict) or len(devices) == 1:
            del self._by_user[identity(user)]
            return _size_of(user, uid), 0
        del devices[uid]
        return _size_of(user, uid), len(devices)

    def count(self, uid: Uid) -> tuple[int, int]:
        """How many devices the user of a device has."""
        user = user_of(uid, self._separator)
        devices = self._by_user[identity(user)]
        return _size_of(user, uid), len(devices) if isinstance(devices, dict) else 1

    def of(self, user: Uid, limit: int) -> list[Uid]:
        """The uids of a user's devices, at most *limit*, in the order of their logins."""
        devices = self._by_user.get(identity(user), {})
        return [*islice(devices if isinstance(devices, dict) else (devices,), limit)]


def _size_of(user: Uid, uid: Uid) -> int:
    """How many characters of a uid are its user; 0 if all are."""
    return len(user) if isinstance(user, str) and user != uid else 0

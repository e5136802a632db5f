"""Which records a search of the log is for, in Python and as a condition in SQL.

There is no index by user: each login would change a random page of its tree. Instead,
SQLite's `instr`, which runs in C without the interpreter lock, searches the encoded pages
for the bytes of a matching record. Only pages that contain them are decoded. A page whose
newest stamp is too old is not searched at all.
"""

from typing import Any, Final, NamedTuple

from liveness.core.records import (
    KINDS,
    SESSION_KINDS,
    Logged,
    Record,
    Uid,
    identity,
)
from liveness.core.wheel.devices import user_of
from liveness.core.wire.framing import encode
from liveness.core.wire.uids import names_of
from liveness.service.storage.log_pages import END

# The stamps of a page are of one commit, and the newest is known. The oldest may be this
# much older: if the disk failed for that long, or the wall clock was set back.
OLDER_MS: Final = 86_400_000


class RecordFilter(NamedTuple):
    """The conditions that a record has to meet, all of them. Stamps are milliseconds.

    A `uid` may be the name of a user with devices: those that `separator` separates.
    """

    uid: Uid | None = None
    kinds: frozenset[str] = frozenset(KINDS)
    gateway: str | None = None
    since: int | None = None
    until: int | None = None
    separator: str = ""

    def matches(self, record: Logged) -> bool:
        """Whether a record matches."""
        return (
            record.kind in self.kinds
            and (self.uid is None or self._is_of_user(record))
            and self.gateway in (None, record.gateway, record.from_gateway)
            and (self.since is None or self.since <= record.at)
            and (self.until is None or record.at < self.until)
        )

    def _is_of_user(self, record: Logged) -> bool:
        """Whether it is of this uid or, by the separator of today, of a device of it.

        The record's own `user` does not count: it is missing in older records, and the
        condition below finds pages by this separator.
        """
        if not isinstance(record, Record):
            return False
        user = user_of(record.uid, self.separator) if self.separator else record.uid
        assert self.uid is not None
        return identity(self.uid) in (identity(record.uid), identity(user))

    def condition(self) -> tuple[str, list[Any]]:
        """An SQL condition that every page with a matching record meets, and its values."""
        groups: list[list[bytes]] = []
        if self.uid is not None:
            uids = [*map(encode, names_of(self.uid))]
            # First the uid alone, as few pages contain a long one. Most pages contain the
            # bytes of a short one, but few of them after a kind.
            groups.append([*uids])
            kinds = [encode(kind) for kind in SESSION_KINDS if kind in self.kinds]
            groups.append([kind + uid for kind in kinds for uid in uids])
            if kinds and self.separator:
                device = (identity(self.uid) + self.separator).encode()
                groups[0].append(device)
                groups[1].append(device)
        elif len(self.kinds) < len(KINDS):
            groups.append([encode(kind) for kind in sorted(self.kinds)])
        if self.gateway is not None:
            groups.append([encode(self.gateway)])
        clauses = ["newest >= ?", "newest < ?"]
        values: list[Any] = [
            -END if self.since is None else self.since,
            END if self.until is None else self.until + OLDER_MS,
        ]
        for group in groups:
            any_of = " or ".join(["instr(records, ?)"] * len(group))
            clauses.append(f"({any_of or 0})")
            values += group
        return " and ".join(clauses), values

"""Who may do what: the users and groups of this host that have a right.

Whom a link belongs to is the kernel's word, taken when it connected; what it says of
itself is a name. A right is to be a gateway, to be a watcher, to see everyone, or to ask
and change things at `admin.sock`. Besides, a name may be tied to a user: then only this
user may say hello by it, in whatever role, and so nobody else reports, reads, acknowledges
or cancels in its place.

Nothing is looked up here: names of users and groups have become numbers before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from liveness.core.records import GATEWAY, Hello


class Peer(NamedTuple):
    """The process at the other end of a socket, as it was when it connected."""

    pid: int
    uid: int
    groups: frozenset[int]  # its own group and the supplementary ones


class Allowed(NamedTuple):
    """Those who have a right: by user or by any group of theirs."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    anyone: bool = False

    def admits(self, peer: Peer) -> bool:
        """Whether *peer* is one of them."""
        return (
            self.anyone
            or peer.uid in self.users
            or not self.groups.isdisjoint(peer.groups)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Every right, and who has it.

    Args:
        gateways: May say hello as a gateway.
        watchers: May say hello as a watcher.
        everyone: May read what concerns other names than the own: `scope: all`.
        admin: May use `admin.sock`.
        names: To whom a name is tied: the user's number.
    """

    gateways: Allowed
    watchers: Allowed
    everyone: Allowed
    admin: Allowed
    names: Mapping[str, int] = field(default_factory=dict)

    def why_no_link(self, peer: Peer) -> str | None:
        """Why *peer* may not be anything here; None if there is a hello for it."""
        if self.gateways.admits(peer) or self.watchers.admits(peer):
            return None
        return (
            f"{_described(peer)} may be neither a gateway nor a watcher here; see "
            "access.gateways and access.watchers"
        )

    def why_not(self, peer: Peer, hello: Hello) -> str | None:
        """Why *peer* may not say this hello; None if it may."""
        is_gateway = hello.role == GATEWAY
        if not (self.gateways if is_gateway else self.watchers).admits(peer):
            return f"{_described(peer)} may not be a {hello.role} here; see access.{hello.role}s"
        if self.names.get(hello.name, peer.uid) != peer.uid:
            return (
                f"{_described(peer)} may not use the name {hello.name!r}, which is another "
                "user's; see access.names"
            )
        if hello.scope == "all" and not self.everyone.admits(peer):
            return (
                f"{_described(peer)} may not see everyone here, only what concerns its own "
                "name; leave out scope, or see access.everyone"
            )
        return None

    def why_no_admin(self, peer: Peer) -> str:
        """Why *peer*, whom `admin` does not admit, may not use `admin.sock`."""
        return f"{_described(peer)} may not use admin.sock; see access.admin"


def _described(peer: Peer) -> str:
    return f"user {peer.uid} (process {peer.pid})"

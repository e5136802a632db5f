"""Access rights: what users and groups of this host may do.

The kernel names the user and groups of a link's process when it connects; the name in its
hello is only a claim. There are four rights: to be a gateway, to be a watcher, to see all
gateways' records, and to use `admin.sock`. A name may also be tied to a user of the host:
then only this user may say hello with it, so that no other user reports, reads,
acknowledges or cancels in its place.

Users are Unix users in this module, never those of the chat. They and groups are numbers,
which others looked up by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from liveness.core.records import GATEWAY
from liveness.core.wire.link_requests import Hello


class Peer(NamedTuple):
    """The process at the other end of a socket, as the kernel saw it connect."""

    pid: int
    unix_user: int
    groups: frozenset[int]  # including supplementary ones


class Allowed(NamedTuple):
    """The users and groups that have a right."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    anyone: bool = False

    def admits(self, peer: Peer) -> bool:
        return (
            self.anyone
            or peer.unix_user in self.users
            or not self.groups.isdisjoint(peer.groups)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Every right, and the users and groups that have it.

    Args:
        gateways: May say hello as a gateway.
        watchers: May say hello as a watcher.
        everyone: May read the records of all gateways: `scope: all`.
        admin: May use `admin.sock`.
        names: By name, the number of the only Unix user that may use it.
    """

    gateways: Allowed
    watchers: Allowed
    everyone: Allowed
    admin: Allowed
    names: Mapping[str, int] = field(default_factory=dict)

    def why_no_link(self, peer: Peer) -> str | None:
        """Why *peer* can be neither gateway nor watcher; None if it can be one."""
        if self.gateways.admits(peer) or self.watchers.admits(peer):
            return None
        return (
            f"{_user(peer)} may be neither a gateway nor a watcher here; see "
            "access.gateways and access.watchers"
        )

    def why_not(self, peer: Peer, hello: Hello) -> str | None:
        """Why this hello of *peer* is refused; None if it is accepted."""
        is_gateway = hello.role == GATEWAY
        if not (self.gateways if is_gateway else self.watchers).admits(peer):
            return f"{_user(peer)} may not be a {hello.role} here; see access.{hello.role}s"
        if self.names.get(hello.name, peer.unix_user) != peer.unix_user:
            return (
                f"{_user(peer)} may not use the name {hello.name!r}, which is another "
                "user's; see access.names"
            )
        if hello.scope == "all" and not self.everyone.admits(peer):
            return (
                f"{_user(peer)} may not see all gateways, only what concerns its own "
                "name (scope: own); see access.everyone"
            )
        return None

    def why_no_admin(self, peer: Peer) -> str:
        return f"{_user(peer)} may not use admin.sock; see access.admin"


def _user(peer: Peer) -> str:
    return f"Unix user {peer.unix_user} (process {peer.pid})"

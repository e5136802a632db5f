"""Rights: each is its own, and a name may be one user's."""

from dataclasses import replace
from typing import Any, Final

import pytest

from liveness.core.access import Access, Allowed, Peer
from liveness.core.wire.frames import parse_hello

NOBODY: Final = Allowed()
ALL: Final = Allowed(anyone=True)
ADA: Final = Peer(11, 1_001, frozenset({1_001, 50}))
BOB: Final = Peer(22, 1_002, frozenset({1_002, 60, 61}))
CLOSED: Final = Access(gateways=NOBODY, watchers=NOBODY, everyone=NOBODY, admin=NOBODY)


def why_not(access: Access, peer: Peer, **hello: Any) -> str | None:
    options = {"protocol": 1, "name": "gw-1", **hello}
    return access.why_not(peer, parse_hello(("hello", options)))


@pytest.mark.parametrize(
    ("allowed", "who"),
    [
        (NOBODY, set()),
        (ALL, {ADA, BOB}),
        (Allowed(users=frozenset({1_001})), {ADA}),
        # A user's number is no group's.
        (Allowed(users=frozenset({50, 60})), set()),
        (Allowed(groups=frozenset({1_002})), {BOB}),
        (Allowed(groups=frozenset({61, 70})), {BOB}),
        (Allowed(users=frozenset({1_001}), groups=frozenset({60})), {ADA, BOB}),
    ],
)
def test_a_user_is_allowed_by_itself_or_by_any_of_its_groups(
    allowed: Allowed, who: set[Peer]
) -> None:
    assert {peer for peer in (ADA, BOB) if allowed.admits(peer)} == who


@pytest.mark.parametrize("role", ["gateway", "watcher"])
def test_one_role_is_not_the_other(role: str) -> None:
    other = {"gateway": "watcher", "watcher": "gateway"}[role]
    is_gateway = role == "gateway"
    access = (
        replace(CLOSED, gateways=ALL) if is_gateway else replace(CLOSED, watchers=ALL)
    )
    assert access.why_no_link(ADA) is None
    assert why_not(access, ADA, role=role, scope="own") is None
    assert f"access.{other}s" in str(why_not(access, ADA, role=other))
    assert not access.admin.admits(ADA)


@pytest.mark.parametrize("role", ["gateway", "watcher"])
def test_to_see_everyone_is_a_right_of_its_own_in_either_role(role: str) -> None:
    access = replace(CLOSED, gateways=ALL, watchers=ALL)
    assert why_not(access, ADA, role=role, scope="own") is None
    assert "access.everyone" in str(why_not(access, ADA, role=role, scope="all"))
    access = replace(access, everyone=ALL)
    assert why_not(access, ADA, role=role, scope="all") is None


@pytest.mark.parametrize("role", ["gateway", "watcher"])
def test_a_tied_name_is_its_users_in_either_role_and_other_names_are_anyones(
    role: str,
) -> None:
    names = {"gw-1": ADA.unix_user}
    access = Access(gateways=ALL, watchers=ALL, everyone=ALL, admin=ALL, names=names)
    assert why_not(access, ADA, role=role) is None
    told = str(why_not(access, BOB, role=role))
    assert "'gw-1'" in told
    assert "access.names" in told
    assert str(ADA.unix_user) not in told  # the owner of a name stays private
    assert why_not(access, BOB, role=role, name="gw-2") is None


def test_only_those_who_are_allowed_use_admin() -> None:
    access = replace(CLOSED, admin=Allowed(users=frozenset({ADA.unix_user})))
    assert access.admin.admits(ADA)
    assert not access.admin.admits(BOB)
    assert access.why_no_admin(BOB).startswith("Unix user 1002 (process 22) may not")
    assert "Unix user 1001 (process 11)" in str(access.why_no_link(ADA))

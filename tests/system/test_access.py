"""Access rights: real users of this host at the real sockets of a real sidecar.

The sidecar runs as root in some tests, and as an ordinary user in one. The rules
themselves: tests/core/test_access.py.
"""

import http.client
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from tests.helpers.needs import as_root
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.os_users import CREW, SOMEBODY, Person
from tests.system.sidecar import SOON_S, Sidecar

pytestmark = as_root

ROOT_USER: Final = Person(0, 0)
STRANGER: Final = Person(SOMEBODY, SOMEBODY)
MEMBER: Final = Person(SOMEBODY, SOMEBODY, (7, CREW, 8))
OTHER_MEMBER: Final = Person(SOMEBODY + 1, CREW)

As = Callable[[Sidecar, Person], Client]


@pytest.fixture
def start(make: Start) -> Start:
    """Starts sidecars in folders that everyone may enter."""

    def started(**settings: object) -> Sidecar:
        sidecar = make(**settings)
        sidecar.folder.chmod(0o755)
        return sidecar.start()

    return started


@pytest.fixture
def as_person() -> Iterator[As]:
    """Connects to a sidecar's socket as a user."""
    with ExitStack() as stack:

        def connected(sidecar: Sidecar, person: Person) -> Client:
            sock = person.connect(sidecar.socket)
            return stack.enter_context(Client(sock))

        yield connected


def turned_away(client: Client) -> str:
    """The refusal for a user without any right, before its hello."""
    refusal = client.refusal()
    assert (refusal["code"], refusal["n"]) == ("not-allowed", 0)
    assert client.receive() is None
    return str(refusal["message"])


def admin(sidecar: Sidecar, person: Person, page: str = "/v1/gateways") -> int:
    """The status of a page that somebody asks `admin.sock` for."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = person.connect(sidecar.admin)
    try:
        connection.request("GET", page)
        return connection.getresponse().status
    finally:
        connection.close()


# --- the sidecar is root's ----------------------------------------------------


def test_a_socket_open_to_all_still_serves_only_those_who_are_allowed(
    start: Start, as_person: As
) -> None:
    sidecar = start(socket_mode="0666")
    message = turned_away(as_person(sidecar, STRANGER))
    assert f"Unix user {SOMEBODY} " in message
    assert "access.gateways" in message
    line = sidecar.line("link refused", code="not-allowed", unix_user=SOMEBODY)
    assert f"process {line['pid']}" in message
    assert sidecar.metric("liveness_frames_refused_total", code="not-allowed") == 1
    assert admin(sidecar, STRANGER) == 403
    assert sidecar.line("admin refused")["unix_user"] == SOMEBODY
    assert admin(sidecar, ROOT_USER) == 200
    as_person(sidecar, ROOT_USER).hello("gw-1")
    assert sidecar.line("link up", name="gw-1")["unix_user"] == ROOT_USER.unix_user


@pytest.mark.parametrize("person", [MEMBER, OTHER_MEMBER], ids=["supplementary", "own"])
def test_the_sockets_group_is_let_in_by_whichever_of_a_users_groups_it_is(
    start: Start, as_person: As, person: Person
) -> None:
    sidecar = start(socket_group=CREW)
    assert sidecar.socket.stat().st_gid == CREW == sidecar.admin.stat().st_gid
    as_person(sidecar, person).hello("gw-1")
    assert admin(sidecar, person) == 200
    with pytest.raises(PermissionError):
        STRANGER.connect(sidecar.socket)


def test_users_who_may_not_use_admin_take_no_place_of_others(start: Start) -> None:
    sidecar = start(socket_mode="0666", http_max_connections=12, http_request_s=600)
    with ExitStack() as stack:
        first, *_ = (
            stack.enter_context(STRANGER.connect(sidecar.admin)) for _ in range(50)
        )
        for _ in range(3):
            assert admin(sidecar, ROOT_USER) == 200
        first.settimeout(SOON_S)
        assert first.recv(100).startswith(b"HTTP/1.1 403 ")
        while first.recv(100):  # and it was closed
            pass
    assert sidecar.metric("liveness_http_refused_total", door="admin", why="access")

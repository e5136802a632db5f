"""Webhooks over HTTP for operators, and requests by hand; time is virtual."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from trio.testing import MockClock

from liveness.config.outlet_settings import WebhookSettings
from liveness.service.outlets.webhooks.webhook_outlet import WebhookOutlet
from tests.service.http.doors import Doors
from tests.service.outlets.webhooks.receiver import (
    OK,
    SECRET_FILE,
    Receiver,
    answering,
    hanging,
    receiving,
)
from tests.service.rig import Caller, running

WEBHOOKS: Final = "/v1/webhooks"
BUSY: Final = answering(503, b"later")
REFUSING: Final = answering(422, b"no")


class Scene(NamedTuple):
    """A service with the webhooks `mail` and `other`, which have one receiver."""

    doors: Doors
    receiver: Receiver
    gateway: Caller

    @property
    def webhooks(self) -> dict[str, WebhookOutlet]:
        outlets = self.doors.rig.sidecar.outlets
        assert outlets is not None
        return {webhook.name: webhook for webhook in outlets.webhooks}

    def dead(self, name: str) -> int:
        return self.webhooks[f"webhooks.{name}"].now().dead_kept

    @contextmanager
    def undeletable(self) -> Iterator[None]:
        """For as long as it is open, SQLite deletes no dead letter."""
        path = self.doors.rig.store.folder / "outlets.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute(
                "create trigger full before delete on dead "
                "begin select raise(abort, 'no'); end"
            )
            yield
            database.execute("drop trigger full")

    async def refuse(self, *users: str) -> None:
        """Have the receiver refuse an online of each of these users, in both webhooks."""
        before = self.dead("mail") + self.dead("other")
        self.receiver.usually = REFUSING
        await self.gateway.send(["login", [*users]])
        until = before + 2 * len(users)
        await self.doors.rig.until(
            lambda: self.dead("mail") + self.dead("other") == until
        )
        self.receiver.usually = OK
        self.receiver.received.clear()

    async def post(self, what: str, status: int = 200, **body: str) -> dict[str, Any]:
        found, answer = await self.doors.change(f"{WEBHOOKS}/{what}", **body)
        assert found == status, answer
        return answer


@asynccontextmanager
async def scene(folder: Path, *names: str) -> AsyncIterator[Scene]:
    async with receiving() as receiver:
        settings = WebhookSettings(
            url=receiver.url,
            secret_file=SECRET_FILE,
            kinds="online",
            timeout_s=5,
            waits_s=(),
        )
        webhooks = dict.fromkeys(names or ("mail", "other"), settings)
        async with running(folder, webhooks=webhooks) as rig:
            yield Scene(Doors(rig), receiver, await rig.gateway("g"))


@pytest.fixture
async def here(tmp_path: Path, jumping: MockClock) -> AsyncIterator[Scene]:
    async with scene(tmp_path) as here:
        yield here


async def ids(scene: Scene, **query: str) -> list[int]:
    return [letter["id"] for letter in await scene.doors.listed(DEAD, **query)]


DEAD: Final = f"{WEBHOOKS}/dead"


MAIL: Final[dict[str, Any]] = {"webhook": "mail"}


async def test_a_test_says_what_the_receiver_answered(here: Scene) -> None:
    answer = await here.post("test", webhook="other")
    assert answer.pop("seconds") < 1
    told = {"accepted": True, "refused": False, "status": 204, "answer": ""}
    assert answer == {"webhook": "other", **told}
    (request,) = here.receiver.received
    assert [event["type"] for event in request.events] == ["liveness.test"]
    here.receiver.usually = REFUSING
    answer = await here.post("test", webhook="mail")
    shown = (answer["accepted"], answer["status"], answer["answer"])
    assert shown == (False, 422, "no")
    here.receiver.usually = hanging
    answer = await here.post("test", webhook="mail")
    assert (answer["accepted"], answer["status"]) == (False, None)
    assert answer["answer"]


@pytest.mark.parametrize(
    ("what", "body", "message"),
    [
        ("test", {"webhook": "mial"}, "no webhook 'mial'; there are mail, other"),
        ("retry", {"id": "17"}, "the body must be JSON with exactly these keys"),
        ("retry", {"webhook": "mail", "x": "1"}, ', and "after" if need be'),
        ("retry", {"webhook": "mail", "after": "x"}, "after is 'x' in the body"),
    ],
    ids=["name", "no-key", "key", "after"],
)
async def test_what_does_not_exist_is_refused(
    here: Scene, what: str, body: dict[str, str], message: str
) -> None:
    status = 404 if "no " in message[:3] else 400
    assert message in (await here.post(what, status, **body))["error"]
    assert not here.receiver.received


async def test_without_webhooks_the_error_says_so(doors: Doors) -> None:
    status, answer = await doors.change(f"{WEBHOOKS}/test", webhook="mail")
    assert status == 404
    error = "there is no webhook 'mail'; the settings have no [webhooks.NAME]"
    assert answer["error"] == error
    assert await doors.listed(DEAD) == []


async def test_dead_letters_come_newest_first_page_by_page(here: Scene) -> None:
    await here.refuse("a", "b")
    await here.refuse("c")
    first, last = await here.doors.pages(DEAD, "before", limit="4")
    everyone = [*first, *last]
    assert [letter["id"] for letter in everyone] == [6, 5, 4, 3, 2, 1]
    newest = everyone[0]
    assert newest["record"]["uid"] == "c"
    assert (newest["status"], newest["answer"]) == (422, "no")
    for name in ("mail", "other"):
        found = [row["id"] for row in everyone if row["webhook"] == name]
        assert len(found) == 3
        assert await ids(here, webhook=name) == found
    assert (await here.doors.get(f"{DEAD}?webhook=none")).status == 404


async def test_dead_letters_are_sent_again_oldest_first_and_deleted_once_accepted(
    here: Scene,
) -> None:
    await here.refuse("a", "b", "c")
    third, second, first = await ids(here, webhook="mail")
    here.receiver.next.extend([OK, REFUSING, BUSY])
    found = list[tuple[int, bool, bool, int]]()
    after: dict[str, Any] = {}
    for _ in range(3):
        answer = await here.post("retry", **MAIL, **after)
        letter = answer["letter"]
        after = {"after": str(letter["id"])}
        found.append(
            (letter["id"], letter["accepted"], letter["refused"], answer["left"])
        )
    assert found == [
        (first, True, False, 2),
        (second, False, True, 2),
        (third, False, False, 2),
    ]
    assert (await here.post("retry", **MAIL, **after))["letter"] is None
    users = [it.events[0]["data"]["uid"] for it in here.receiver.received]
    assert users == ["a", "b", "c"]
    assert await ids(here, webhook="mail") == [third, second]
    assert len(await ids(here, webhook="other")) == 3


async def test_what_the_disk_refuses_after_an_accepted_request_is_said(
    here: Scene,
) -> None:
    await here.refuse("a")
    (letter,) = await ids(here, webhook="mail")
    with here.undeletable():
        error = (await here.post("retry", 503, **MAIL))["error"]
        accepted = f"the receiver has accepted the dead letter {letter}, and it cannot"
        assert error.startswith(accepted)
        await here.post("drop", 503, **MAIL)
    assert len(here.receiver.received) == 1
    assert await ids(here, webhook="mail") == [letter]


async def test_dropped_letters_are_gone_and_their_numbers_are_not_used_again(
    here: Scene,
) -> None:
    await here.refuse("a", "b", "c")
    newest, *_ = await ids(here)
    kept = await ids(here, webhook="other")
    assert await here.post("drop", **MAIL) == {**MAIL, "deleted": 3}
    assert (await ids(here), here.dead("mail")) == (kept, 0)
    assert (await here.post("drop", **MAIL))["deleted"] == 0
    await here.post("drop", webhook="other")
    assert not here.receiver.received
    await here.refuse("g")
    assert await ids(here) == [newest + 2, newest + 1]


async def test_letters_of_a_removed_webhook_are_shown_and_come_back_with_it(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with scene(tmp_path) as here:
        await here.refuse("a")
    async with scene(tmp_path, "new") as here:
        assert len(await ids(here, webhook="mail")) == 1
        await here.post("retry", 404, **MAIL)
        await here.post("drop", 404, **MAIL)
    async with scene(tmp_path) as here:
        assert (await here.post("retry", **MAIL))["letter"]["accepted"]


async def test_requests_say_that_the_database_is_not_open(
    tmp_path: Path, jumping: MockClock
) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state/outlets.db").write_bytes(b"not a database" * 400)
    async with scene(tmp_path) as here:
        answer = await here.doors.get(DEAD)
        assert answer.status == 503
        assert "outlets.db is not open" in str(answer.error)
        await here.post("retry", 503, webhook="mail")
        assert (await here.post("test", webhook="mail"))["accepted"]

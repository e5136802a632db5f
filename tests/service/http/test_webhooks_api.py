"""Webhooks over HTTP for operators, and requests by hand; time is virtual."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from liveness.config.outlet_settings import WebhookSettings
from liveness.metrics.counts import DOORS
from liveness.service.http import webhooks_api
from liveness.service.outlets.webhooks import dead_letters
from liveness.service.outlets.webhooks.webhook_outlet import WebhookOutlet
from tests.service.http.doors import Doors
from tests.service.http.test_routes import schema_of, validate
from tests.service.outlets.webhooks.receiver import (
    OK,
    SECRET,
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
    def undeletable(self, from_number: int = 0) -> Iterator[None]:
        """For as long as it is open, SQLite deletes no dead letter from that one on."""
        outlets = self.doors.rig.sidecar.outlets
        assert outlets is not None
        database = outlets.store._db
        assert database is not None
        database.execute(
            "create temp trigger full before delete on dead "
            f"when old.number >= {from_number} begin select raise(abort, 'no'); end"
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
        validate(answer, schema_of(f"{WEBHOOKS}/{what}", status, "post"))
        return answer


@asynccontextmanager
async def scene(folder: Path, *names: str) -> AsyncIterator[Scene]:
    async with receiving() as receiver:
        settings = WebhookSettings(
            url=receiver.url, secret=SECRET, kinds="online", timeout_s=5, retry=""
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


def by_id_and_name(what: str, letter: int) -> list[tuple[str, dict[str, Any]]]:
    """Requests for one dead letter, and for all of `mail`."""
    return [(what, {"id": str(letter)}), (f"{what}-all", MAIL)]


MAIL: Final[dict[str, Any]] = {"webhook": "mail"}


@pytest.mark.parametrize("door", DOORS)
async def test_each_webhook_is_listed_without_its_secret_and_query(
    here: Scene, door: str
) -> None:
    answer = await here.doors.get(WEBHOOKS, door)
    found = json.loads(answer.body)
    validate(found, schema_of(WEBHOOKS, 200))
    assert [webhook["webhook"] for webhook in found["webhooks"]] == [
        "mail",
        "other",
    ]
    mail = found["webhooks"][0]
    assert mail["url"] == here.receiver.url.removesuffix("?x=1")
    assert (mail["kinds"], mail["batch"]) == (["online"], 500)
    assert (mail["outlet"], mail["state"]) == ("webhooks.mail", "following")
    assert SECRET.encode() not in answer.body
    assert b"x=1" not in answer.body


async def test_a_test_says_what_the_receiver_answered(here: Scene) -> None:
    answer = await here.post("test", webhook="other")
    assert answer.pop("seconds") < 1
    accepted = {"webhook": "other", "accepted": True, "status": 204, "answer": ""}
    assert answer == accepted
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
        (
            "retry-all",
            {"webhook": ""},
            "webhook is '' in the body; it must be a string",
        ),
        ("retry", {"id": "17"}, "no dead letter 17: `liveness webhooks dead` shows"),
        ("retry", {"id": "x"}, "id is 'x' in the body; it must be a whole number"),
        ("retry", {"id": str(2**63 - 2)}, "no dead letter 9223372036854775806: "),
        ("retry", {"id": str(2**63 - 1)}, "id is '9223372036854775807' in the body; "),
        ("retry", {"webhook": "mail"}, "the body must be JSON with exactly these keys"),
        ("retry", {"id": "17", "": "x"}, "the body must be JSON with exactly these"),
        ("retry-all", {"webhook": "mail", "x": "1"}, ', and "after" if need be'),
        ("retry-all", {"webhook": "mail", "after": "x"}, "after is 'x' in the body"),
        ("drop", {"id": "17"}, "no dead letter 17: `liveness webhooks dead` shows"),
        ("drop-all", {"webhook": "mial"}, "no webhook 'mial'; there are mail, other"),
    ],
    ids=[
        "name",
        "empty",
        "id",
        "text",
        "most",
        "above",
        "key",
        "no-key",
        "other",
        "after",
        "drop",
        "all",
    ],
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


@pytest.mark.parametrize("door", DOORS)
async def test_dead_letters_come_newest_first_page_by_page(
    here: Scene, door: str
) -> None:
    await here.refuse("a", "b")
    await here.refuse("c")
    everyone, query = list[dict[str, Any]](), "limit=4"
    for size in (4, 2):
        page = json.loads((await here.doors.get(f"{DEAD}?{query}", door)).body)
        validate(page, schema_of(DEAD, 200))
        assert len(page["dead"]) == size
        everyone += page["dead"]
        query = f"limit=4&before={page['next']}"
    assert page["next"] is None
    assert [letter["id"] for letter in everyone] == [6, 5, 4, 3, 2, 1]
    newest = everyone[0]
    assert newest["record"]["uid"] == "c"
    assert (newest["status"], newest["answer"]) == (422, "no")
    for name in ("mail", "other"):
        found = [row["id"] for row in everyone if row["webhook"] == name]
        assert len(found) == 3
        assert await ids(here, webhook=name) == found
    answer = await here.doors.get(f"{DEAD}?webhook=none", door)
    assert answer.status == 404


async def test_a_dead_letter_is_deleted_once_it_is_accepted(here: Scene) -> None:
    await here.refuse("a")
    (letter,) = await here.doors.listed(DEAD, webhook="other")
    here.receiver.usually = REFUSING
    answer = await here.post("retry", id=str(letter["id"]))
    assert (answer["webhook"], answer["accepted"]) == ("other", False)
    here.receiver.usually = OK
    answer = await here.post("retry", id=str(letter["id"]))
    assert (answer["id"], answer["accepted"]) == (letter["id"], True)
    (mail,) = await here.doors.listed(DEAD)
    assert mail["webhook"] == "mail"
    await here.post("retry", 404, id=str(letter["id"]))


async def test_all_are_retried_oldest_first_until_the_receiver_fails(
    here: Scene,
) -> None:
    await here.refuse("a", "b", "c", "d")
    dead = await ids(here, webhook="mail")
    here.receiver.next.extend([OK, REFUSING, BUSY])
    answer = await here.post("retry-all", webhook="mail")
    failed = answer.pop("failed")
    assert (failed["id"], failed["status"]) == (dead[-3], 503)
    counts = {"accepted": 1, "refused": 1, "left": 3, "next": None}
    assert answer == {"webhook": "mail", **counts}
    here.receiver.next.append(REFUSING)
    answer = await here.post("retry-all", webhook="mail")
    counts = {"accepted": 2, "refused": 1, "left": 1, "next": None}
    assert answer == {"webhook": "mail", **counts, "failed": None}
    users = [it.events[0]["data"]["uid"] for it in here.receiver.received]
    assert users == ["a", "b", "c", "b", "c", "d"]
    assert len(await ids(here, webhook="other")) == 4


async def test_what_the_disk_refuses_after_an_accepted_request_is_said(
    here: Scene,
) -> None:
    await here.refuse("a")
    (letter,) = await ids(here, webhook="mail")
    with here.undeletable():
        for what, body in by_id_and_name("retry", letter):
            error = (await here.post(what, 503, **body))["error"]
            accepted = (
                f"the receiver has accepted the dead letter {letter}, and it cannot"
            )
            assert error.startswith(accepted)
            assert "nothing was changed" not in error
        error = (await here.post("drop", 503, id=str(letter)))["error"]
        assert error.endswith("; nothing was changed, ask again")
        error = (await here.post("drop-all", 503, **MAIL))["error"]
        assert error.endswith("; 0 dead letters were deleted, ask again")
    assert len(here.receiver.received) == 2
    assert await ids(here, webhook="mail") == [letter]


async def test_an_error_amid_a_retry_of_all_says_what_was_done_before(
    here: Scene,
) -> None:
    await here.refuse("a", "b")
    here.receiver.next.append(REFUSING)
    with here.undeletable():
        error = (await here.post("retry-all", 503, **MAIL))["error"]
    assert error.endswith("; 0 were accepted and 1 refused before that")


async def test_dropped_letters_are_gone_and_their_numbers_are_not_used_again(
    here: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "DELETED_AT_ONCE", 2)
    await here.refuse("a", "b", "c", "d", "e", "f")
    newest, *others = await ids(here)
    owner = "mail" if newest in await ids(here, webhook="mail") else "other"
    answer = await here.post("drop", id=str(newest))
    assert answer == {"webhook": owner, "id": newest, "left": 5}
    await here.post("drop", 404, id=str(newest))
    assert (await ids(here), here.dead(owner)) == (others, 5)
    kept = await ids(here, webhook="other")
    answer = await here.post("drop-all", **MAIL)
    assert answer == {"webhook": "mail", "deleted": 11 - len(kept), "left": 0}
    assert (await ids(here), here.dead("mail")) == (kept, 0)
    assert (await here.post("drop-all", **MAIL))["deleted"] == 0
    await here.post("drop-all", webhook="other")
    assert not here.receiver.received
    await here.refuse("g")
    assert await ids(here) == [newest + 2, newest + 1]


async def test_letters_that_were_dropped_before_an_error_do_not_count(
    here: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "DELETED_AT_ONCE", 2)
    await here.refuse("a", "b", "c")
    newest, *_ = await ids(here, webhook="mail")
    with here.undeletable(newest):
        error = (await here.post("drop-all", 503, **MAIL))["error"]
    assert "; 2 dead letters were deleted, ask again" in error
    assert (await ids(here, webhook="mail"), here.dead("mail")) == ([newest], 1)


async def test_letters_of_a_removed_webhook_are_shown_and_dropped_but_not_sent(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with scene(tmp_path) as here:
        await here.refuse("a")
    async with scene(tmp_path, "new") as here:
        assert {row["webhook"] for row in await here.doors.listed(DEAD)} == {
            "mail",
            "other",
        }
        (letter,) = await ids(here, webhook="mail")
        error = (await here.post("retry", 409, id=str(letter)))["error"]
        assert "is of the webhook 'mail', which is not in the settings" in error
        await here.post("retry-all", 404, **MAIL)
        answer = await here.post("drop", id=str(letter))
        assert answer == {"webhook": "mail", "id": letter, "left": 0}
        await here.post("drop-all", 404, **MAIL)
        assert (await here.post("drop-all", webhook="other"))["deleted"] == 1
        assert await ids(here) == []


async def test_a_drop_waits_for_no_retry(here: Scene) -> None:
    await here.refuse("a")
    (letter,) = await ids(here, webhook="mail")
    here.receiver.usually = hanging
    async with trio.open_nursery() as nursery:

        async def retry() -> None:
            await here.post("retry-all", **MAIL)

        nursery.start_soon(retry)
        await trio.sleep(1)
        for what, body in by_id_and_name("drop", letter):
            refusal = await here.post(what, 409, **body)
            assert "are being sent or dropped already" in refusal["error"]
    assert await ids(here, webhook="mail") == [letter]


async def test_a_retry_of_all_ends_after_a_while_and_is_alone(here: Scene) -> None:
    await here.refuse(*(f"u{n}" for n in range(20)))

    async def slow(stream: trio.abc.Stream, request: Any) -> None:
        await trio.sleep(4)
        await OK(stream, request)

    here.receiver.usually = slow
    async with trio.open_nursery() as nursery:
        answers = list[dict[str, Any]]()

        async def retry() -> None:
            answers.append(await here.post("retry-all", webhook="mail"))

        nursery.start_soon(retry)
        await trio.sleep(1)
        refusal = await here.post("retry-all", 409, webhook="mail")
        assert "are being sent or dropped already" in refusal["error"]
        await here.post("test", webhook="mail")
        await here.post("retry", id=str((await ids(here, webhook="other"))[0]))
    (answer,) = answers
    accepted = webhooks_api.RETRY_ALL_S / 4
    assert (answer["accepted"], answer["left"]) == (accepted, 20 - accepted)
    assert (answer["refused"], answer["failed"]) == (0, None)
    rest = await here.post("retry-all", webhook="mail", after=answer["next"])
    assert rest["accepted"] == accepted


async def test_requests_say_that_the_database_is_not_open(
    tmp_path: Path, jumping: MockClock
) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state/outlets.db").write_bytes(b"not a database" * 400)
    async with scene(tmp_path) as here:
        answer = await here.doors.get(DEAD)
        assert answer.status == 503
        assert "outlets.db is not open" in str(answer.error)
        await here.post("retry-all", 503, webhook="mail")
        assert (await here.post("test", webhook="mail"))["accepted"]

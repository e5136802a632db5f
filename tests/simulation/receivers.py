"""Receivers of webhooks: they answer late, endlessly, half, with errors, or not at all."""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from liveness.config.outlet_settings import WebhookSettings
from liveness.core.records import KINDS, SESSION_KINDS
from liveness.promises.delivery_history import (
    Outbound,
    Request,
    WebhookTerms,
)
from liveness.promises.run_history import History
from tests.simulation.doors import MOODS_OF_DOORS, Door
from tests.simulation.scales import by_scale
from tests.simulation.situations import reached

SECRET: Final = "whsec_bGl2ZW5lc3MgZXhhbXBsZSBzZWNyZXQgMDEyMw=="
FIRST_PORT: Final = 8_000
# A receiver of whom nothing is wrong answers within a part of the time, and this.
SLOW_S: Final = 2.0

# What may befall one. For as long as it lasts, every connection and request meets it.
MOODS: Final = (
    *MOODS_OF_DOORS,
    "answers before it has read all",
    "says nothing",
    "is late",
    "fails",
    "turns everything away",
    "refuses every record",
    "sends heads without end",
    "sends interim answers without end",
    "sends bodies without end",
    "cuts its answers off",
    "closes kept connections",
    "is no web server",
)
_FAILURES: Final = (500, 502, 503, 503, 429, 429, 408, 425, 302, 599)
_TURNED_AWAY: Final = (401, 403, 404, 405, 407, 410)
_REFUSED: Final = (400, 409, 413, 422)
_NOT_HTTP: Final = (
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"\x15\x03\x01\x00\x02\x02\x50",
    b"HTTP/1.1 20x OK\r\n\r\n",
    b"HTTP/1.1 204 \xff\r\nno colon\r\n\r\n",
    b"HTTP/2 200 OK\r\n\r\n",
    b"\r\n" * 50,
)


@dataclass(frozen=True, slots=True)
class ReceiverPlan:
    """A webhook of the sidecar's, and its receiver, as they are throughout a run."""

    name: str
    settings: WebhookSettings
    refuses_each: int = 0  # it refuses records whose seq this divides; 0: none
    refuses_by: int = 422  # with this status

    @property
    def terms(self) -> WebhookTerms:
        """What it is owed."""
        own = self.settings
        return WebhookTerms(
            kinds=own.kinds.split(","),
            gateway=own.gateways,
            users_only=own.users_only,
            settle_s=own.settle_s,
            begins_at_oldest=own.begin == "oldest",
            batch=own.batch,
            timeout_s=own.timeout_s,
            waits_s=[float(wait) for wait in own.retry.split(",") if wait],
            max_dead=own.max_dead,
        )

    def refuses(self, events: list[dict[str, Any]]) -> bool:
        """Whether it will never accept one of them."""
        seqs = [it["data"]["seq"] for it in events if "seq" in it["data"]]
        return any(self.refuses_each and seq % self.refuses_each == 0 for seq in seqs)


def drawn_receiver(
    random: Random, port: int, gateways: Sequence[str], *, has_devices: bool
) -> ReceiverPlan:
    """Draw the one at a port."""
    kinds = random.choice([SESSION_KINDS, SESSION_KINDS, KINDS, ("online", "offline")])
    users_only = has_devices and random.random() < 0.3
    some = random.random() < 0.2 and not users_only
    waits = [
        f"{by_scale(random, 0.1, 60):.1f}" for _ in range(random.choice([0, 1, 3, 9]))
    ]
    settings = WebhookSettings(
        url=f"http://127.0.0.1:{port}/",
        secret=SECRET,
        kinds=",".join(kinds),
        gateways=random.choice(gateways) if some else "",
        users_only=users_only,
        settle_s=random.choice([0.0, 0.0, by_scale(random, 0.1, 20)]),
        begin=random.choice(["newest", "oldest"]),
        batch=random.choice([1, 3, 500]),
        timeout_s=by_scale(random, 0.1, 60),
        retry=",".join(waits),
        max_dead=random.choice([3, 100_000]),
    )
    refuses = random.choice([0, 0, 2, 7, 30]), random.choice([422, 422, 404])
    return ReceiverPlan(f"to-{port}", settings, *refuses)


class Receiver(Door):
    """One receiver, on a socket of its own.

    Args:
        plan: What it is.
        folder: Where its socket is.
        random: Draws what a request meets.
        wall_ms: The wall clock.
        history: Told what it gets.
    """

    def __init__(
        self,
        plan: ReceiverPlan,
        folder: Path,
        random: Random,
        wall_ms: Callable[[], int],
        history: History,
    ) -> None:
        super().__init__(folder / f"{plan.name}.sock")
        self.outbound = history.outbound[plan.name] = Outbound(plan.terms)
        self._plan = plan
        self._random = random
        self._wall_ms = wall_ms
        self._history = history

    # --- a connection -----------------------------------------------------------

    async def serve(self, stream: trio.SocketStream) -> None:
        data, served = bytearray(), 0
        while True:
            if self.mood == "resets connections" and not served:
                await trio.lowlevel.checkpoint()  # it is sent to, and does not read
                reached("outlets: a receiver resets a new connection")
                return
            while b"\r\n\r\n" not in data:
                if not (more := await stream.receive_some()):
                    return
                data += more
            if self.mood == "resets connections":
                reached("outlets: a receiver resets a kept connection")
                return
            if self.mood == "closes kept connections" and served:
                reached("outlets: a kept connection is closed unanswered")
                return
            head, _, rest = bytes(data).partition(b"\r\n\r\n")
            lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:]]
            headers = {name.lower(): value for name, value in lines}
            length = int(headers["content-length"])
            if self.mood == "answers before it has read all":
                status = self._random.choice([503, 413, 204])
                request = self._noted(
                    stream, headers, rest if len(rest) == length else None
                )
                await self._say(stream, request, status, b"connection: close\r\n")
                reached("outlets: a receiver answers before it has read all")
                return
            while len(rest) < length:
                if not (more := await stream.receive_some()):
                    return
                rest += more
            body, data = rest[:length], bytearray(rest[length:])
            request = self._noted(stream, headers, body)
            if served:
                reached("outlets: a kept connection is used again")
            served += 1
            if not await self._answer(stream, request):
                return

    def _noted(
        self, stream: trio.SocketStream, headers: dict[str, str], body: bytes | None
    ) -> Request:
        """A request, which is in the history if all of it has come."""
        name, stamp = headers["webhook-id"], headers["webhook-timestamp"]
        key = b64decode(SECRET.removeprefix("whsec_"))
        signed = f"{name}.{stamp}.".encode() + (body or b"")
        signature = b64encode(hmac.digest(key, signed, sha256)).decode()
        request = Request(
            trio.current_time(),
            len(self._history.processes) - 1,
            self.streams[stream],
            name,
            int(stamp),
            headers["webhook-signature"] == f"v1,{signature}",
            body or b"[]",
        )
        if body is not None:
            self.outbound.requests.append(request)
        return request

    async def _answer(self, stream: trio.SocketStream, request: Request) -> bool:
        """Answer as the mood is; say whether the connection stays open."""
        random, timeout_s = self._random, self._plan.settings.timeout_s
        match self.mood:
            case "says nothing":
                await stream.receive_some()
                reached("outlets: a receiver says nothing as long as an attempt lasts")
                return False
            case "is late":
                await trio.sleep(random.uniform(0, 3) * timeout_s)
                try:
                    await self._say(stream, request, 204)
                except trio.BrokenResourceError:
                    reached("outlets: an answer comes after its attempt")
                    raise
                return True
            case "fails":
                return await self._say(
                    stream, request, random.choice(_FAILURES), self._retry_after()
                )
            case "turns everything away":
                return await self._say(stream, request, random.choice(_TURNED_AWAY))
            case "refuses every record":
                is_test = request.events[0]["type"] == "liveness.test"
                status = 204 if is_test else random.choice(_REFUSED)
                return await self._say(stream, request, status)
            case "sends heads without end":
                await self._drip(stream, b"HTTP/1.1 200 OK\r\n", b"x-more: yes\r\n")
                reached("outlets: a head without end is cut off")
                return False
            case "sends interim answers without end":
                await self._drip(stream, b"", b"HTTP/1.1 103 Early Hints\r\n\r\n")
                reached("outlets: an interim answer without end is cut off")
                return False
            case "sends bodies without end":
                head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
                request.status = 200
                await self._drip(stream, head, b"400\r\n%b\r\n" % (b"x" * 0x400))
                reached("outlets: a body without end is cut off")
                return False
            case "cuts its answers off":
                head = b"HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n"
                cut = random.randrange(len(head) + 40)
                if cut < len(head):
                    reached("outlets: an answer ends in its head")
                else:
                    request.status = 200
                    reached("outlets: an answer ends in its body")
                await stream.send_all((head + b"x" * 40)[:cut])
                return False
            case "closes kept connections":
                await self._say(stream, request, 204)
                await trio.sleep(random.choice([0.0, random.uniform(0, 6)]))
                return random.random() < 0.5  # or when it is used again
            case "is no web server":
                reached("outlets: what answers is no web server")
                await stream.send_all(random.choice(_NOT_HTTP))
                return random.random() < 0.5
            case _:
                pass
        return await self._say_well(stream, request)

    async def _say_well(self, stream: trio.SocketStream, request: Request) -> bool:
        random, plan = self._random, self._plan
        if plan.refuses(request.events):
            return await self._say(stream, request, plan.refuses_by)
        if random.random() < 0.3 and not self.is_at_rest:
            await trio.sleep(
                min(random.uniform(0, 0.3) * plan.settings.timeout_s, SLOW_S)
            )
        if random.random() < 0.1:
            await stream.send_all(b"HTTP/1.1 102 Processing\r\n\r\n")
        close = b"connection: close\r\n" if random.random() < 0.1 else b""
        return await self._say(stream, request, random.choice([200, 204]), close)

    async def _say(
        self,
        stream: trio.SocketStream,
        request: Request,
        status: int,
        headers: bytes = b"",
    ) -> bool:
        """Send a whole answer."""
        body = b"" if status == 204 else b"x" * self._random.choice([0, 3, 2_000])
        length = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
        head = b"HTTP/1.1 %d x\r\n%b%b\r\n" % (status, length, headers)
        request.status = status
        try:
            await stream.send_all(head + body)
        except trio.BrokenResourceError:
            request.status = None
            raise
        return b"close" not in headers

    async def _drip(
        self, stream: trio.SocketStream, first: bytes, again: bytes
    ) -> None:
        """Send what never ends until it is cut off: as fast as it is read, or slowly."""
        pace_s = self._random.choice([0.0, 0.01, 0.7]) * self._plan.settings.timeout_s
        with suppress(trio.BrokenResourceError):
            await stream.send_all(first)
            while True:
                await stream.send_all(again)
                await trio.sleep(pace_s)

    def _retry_after(self) -> bytes:
        """A header that asks for a wait, or none."""
        random = self._random
        seconds = random.choice([1, 20, 100_000])
        date = formatdate(self._wall_ms() / 1000 + seconds, usegmt=True)
        asked = random.choice(["", f"{seconds}", date, "soon", "-1", "\xb2"])
        if asked == date:
            reached("outlets: a receiver asks for a wait until a date")
        elif asked == "100000":
            reached("outlets: a receiver asks for a wait longer than all attempts")
        elif asked and not asked.isascii():
            reached("outlets: a receiver asks for a wait that nobody can read")
        return f"retry-after: {asked}\r\n".encode("latin-1") if asked else b""

"""Receivers of webhooks, which may answer late, in part, without end, with an error, or never."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email import message_from_bytes
from math import inf
from random import Random
from typing import Final

import trio
from standardwebhooks import Webhook

from liveness.config.outlet_settings import WebhookSettings
from liveness.core.records import KINDS, SESSION_KINDS
from tests.promises.run_history import History, Outbound, Request
from tests.service.outlets.webhooks.receiver import SECRET, SECRET_FILE
from tests.simulation.scales import by_scale, whole
from tests.simulation.servers import SERVER_FAILURES, Server
from tests.simulation.situations import reached

FIRST_PORT: Final = 8_000
# A receiver without a failure answers within a part of the time, and this.
SLOW_S: Final = 2.0

# How a failure answers, if by a status alone.
_STATUSES: Final = {
    "answers before it has read all": (503, 413),
    "fails": (500, 502, 503, 503, 429, 429, 408, 425, 302, 599),
    "turns everything away": (401, 403, 404, 405, 407, 410),
}
_REFUSED: Final = (400, 409, 413, 422)
FAILURES: Final = (
    *SERVER_FAILURES,
    *_STATUSES,
    "refuses every record",
    "is no web server",
)
_NOT_HTTP: Final = (
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"\x15\x03\x01\x00\x02\x02\x50",
    b"HTTP/1.1 20x OK\r\n\r\n",
    b"HTTP/1.1 204 \xff\r\nno colon\r\n\r\n",
)
# A head that is whole, and not of an interim answer.
_HEAD: Final = re.compile(rb"HTTP/1\.1 ([2-5]\d\d) .*?\r\n\r\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReceiverPlan:
    """A webhook of the sidecar's, and its receiver, as they are throughout a run."""

    name: str
    settings: WebhookSettings
    refuses_each: int = 0  # it refuses records whose seq this divides; 0: none


def drawn_receiver(random: Random, port: int, *, has_devices: bool) -> ReceiverPlan:
    """Draw the one at a port."""
    kinds = random.choice([SESSION_KINDS, SESSION_KINDS, KINDS, ("online", "offline")])
    users_only = has_devices and random.random() < 0.3
    longest_s = random.choice([60.0, 60.0, 86_400.0])
    waits = [
        by_scale(random, 0.1, longest_s) for _ in range(random.choice([0, 1, 3, 9]))
    ]
    settings = WebhookSettings(
        url=f"http://127.0.0.1:{port}/",
        secret_file=SECRET_FILE,
        kinds=",".join(kinds),
        users_only=users_only,
        settle_s=random.choice([0.0, 0.0, by_scale(random, 0.1, 20)]),
        begin=random.choice(["newest", "oldest"]),
        batch=whole(random, 1, 500),
        timeout_s=by_scale(random, 0.1, 300),
        waits_s=tuple(round(wait, 1) for wait in waits),
        max_dead=whole(random, 1, random.choice([10, 10_000_000])),
    )
    return ReceiverPlan(f"to-{port}", settings, random.choice([0, 0, 2, 7, 30]))


class Receiver(Server[Request]):
    """One receiver.

    Args:
        plan: What it is.
        random: Draws what a request meets.
        history: Records what it gets.
    """

    outbound: Outbound
    endless = (
        (b"HTTP/1.1 200 OK\r\n", b"x-more: yes\r\n" * 50),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            b"400\r\n%b\r\n" % (b"x" * 0x400),
        ),
    )

    def __init__(self, plan: ReceiverPlan, random: Random, history: History) -> None:
        own = plan.settings
        super().__init__(own.parts.port or 0, random, own.timeout_s)
        self.outbound = history.outbound[plan.name] = Outbound(own)
        self._plan = plan
        self._history = history

    def first_of(self, data: bytes) -> tuple[Request, bytes] | None:
        head, end, rest = data.partition(b"\r\n\r\n")
        headers = message_from_bytes(head.partition(b"\r\n")[2])
        length = int(headers.get("content-length", 0))
        is_whole = len(rest) >= length
        if not end or not (
            is_whole or self.failure == "answers before it has read all"
        ):
            return None
        name, stamp = headers["webhook-id"], headers["webhook-timestamp"]
        body = rest[:length]
        signed_at = datetime.fromtimestamp(int(stamp), UTC)
        signature = Webhook(SECRET).sign(name, signed_at, body.decode(errors="replace"))
        request = Request(
            trio.current_time(),
            len(self._history.processes) - 1,
            name,
            int(stamp),
            headers["webhook-signature"] == signature,
            body,
        )
        if is_whole:
            self.outbound.requests.append(request)
        else:
            reached("outlets: a receiver answers before it has read all")
        return request, rest[length:]

    def note(self, request: Request, sent: bytes) -> None:
        if head := _HEAD.match(sent):
            request.status = int(head[1])

    async def answer(self, stream: trio.SocketStream, request: Request) -> bool:
        random, failure, status = self.random, self.failure, self._status_for(request)
        if random.random() < 0.3 and self.until < inf:
            await trio.sleep(min(random.uniform(0, 0.3) * self.timeout_s, SLOW_S))
        if random.random() < 0.1:
            await stream.send_all(b"HTTP/1.1 102 Processing\r\n\r\n")
        if failure == "is no web server":
            await stream.send_all(random.choice(_NOT_HTTP))
            reached("outlets: what answers is no web server")
            return random.random() < 0.5
        head = b"HTTP/1.1 %d x\r\n" % status
        if failure == "fails":
            head += self._retry_after()
        is_last = failure == "answers before it has read all" or random.random() < 0.1
        if is_last:
            head += b"connection: close\r\n"
        body = b"x" * random.choice([0, 3, 2_000])
        length = b"content-length: %d\r\n\r\n%b" % (len(body), body)
        answer = head + (b"\r\n" if status == 204 else length)
        return await self.send(stream, request, answer) and not is_last

    def _status_for(self, request: Request) -> int:
        if (statuses := _STATUSES.get(self.failure)) is None:
            is_strict = self.failure == "refuses every record"
            each = 1 if is_strict else self._plan.refuses_each
            records = [event["data"] for event in request.events]
            seqs = [record["seq"] for record in records if "seq" in record]
            is_refused = each and any(seq % each == 0 for seq in seqs)
            statuses = _REFUSED if is_refused else (200, 204)
        return self.random.choice(statuses)

    def _retry_after(self) -> bytes:
        seconds = self.random.choice([1, 20, 100_000])
        asked = self.random.choice([f"{seconds}", "soon", "-1", "\xb2"])
        if asked == "100000":
            reached("outlets: a receiver asks for a wait longer than all attempts")
        return f"retry-after: {asked}\r\n".encode("latin-1")

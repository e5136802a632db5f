"""One attempt, to a server that fails in every way."""

import math
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
import trio
import trio.testing
from standardwebhooks import WebhookVerificationError
from trio.testing import MockClock

from liveness.config.outlet_settings import WebhookSettings
from liveness.errors import ConfigError, StartError
from liveness.lab.common.processes import free_port
from liveness.service.common.clock import Clock
from liveness.service.common.turnstile import Turnstile
from liveness.service.outlets.webhooks import sender as sender_module
from liveness.service.outlets.webhooks.sender import (
    ANSWER_BYTES,
    MOST_BYTES,
    READ_BYTES,
    TRY_AGAIN,
    PostAnswer,
    WebhookSender,
    check_webhook,
    secrets,
)
from tests.helpers.parsing import Parsing
from tests.helpers.redis_servers import Certificates
from tests.service.outlets.webhooks import receiver as receivers
from tests.service.outlets.webhooks.receiver import (
    LOOPBACK,
    OK,
    SECOND_SECRET,
    SECRET,
    SECRET_FILE,
    Receiver,
    answering,
    ending,
    endless,
    flooding,
    hanging,
    receiving,
    resetting,
    saying,
)

BODY: Final = b"[]"
HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"


@asynccontextmanager
async def sender_to(
    url: str, turnstile: Turnstile | None = None, **settings: Any
) -> AsyncIterator[WebhookSender]:
    chosen = WebhookSettings(url=url, **{"secret_file": SECRET_FILE} | settings)
    sender = WebhookSender("webhooks.mail", chosen, Clock(), turnstile or Turnstile())
    try:
        yield sender
    finally:
        sender.close()


async def posted(url: str, **settings: Any) -> PostAnswer:
    async with sender_to(url, **settings) as sender:
        return await sender.post("msg_1", BODY)


# --- the request ----------------------------------------------------------------------


async def test_a_request_is_signed_and_has_what_the_url_says(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    answer = await posted(receiver.url)
    (request,) = receiver.received
    request.verify()
    assert request.line == "POST /hook?x=1 HTTP/1.1"
    assert request.headers.keys() == {
        "host",
        "user-agent",
        "content-type",
        "content-length",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["content-type"] == "application/cloudevents-batch+json"
    assert (request.id, request.body) == ("msg_1", BODY)
    assert answer.is_accepted


async def test_each_secret_of_the_file_signs(
    receiver: Receiver, tmp_path: Path
) -> None:
    path = secret_file(tmp_path, f"{SECRET}\n\n  {SECOND_SECRET}\r\n")
    await posted(receiver.url, secret_file=path)
    (request,) = receiver.received
    for secret in (SECRET, SECOND_SECRET):
        request.verify(secret)
        with pytest.raises(WebhookVerificationError):
            request._replace(body=BODY + b" ").verify(secret)


def secret_file(folder: Path, content: str) -> Path:
    path = folder / "secret"
    path.write_text(content)
    path.chmod(0o600)
    return path


def keys_in(path: Path) -> list[bytes]:
    settings = WebhookSettings(url="https://example.com/", secret_file=path)
    return secrets("webhooks.mail", settings)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty; put a line there: whsec_ and 24 to 64 bytes in base64"),
        (f"{SECRET}\nwhsec_c2hvcnQ=\n", "has no secret in line 2: it must be whsec_"),
        ("whsec_#?", "has no secret in line 1"),
        ("whsec_é", "has no secret in line 1"),
    ],
    ids=["empty", "short", "not base64", "not ASCII"],
)
def test_what_is_no_secret_is_refused_and_not_shown(
    tmp_path: Path, content: str, said: str
) -> None:
    path = secret_file(tmp_path, content)
    with pytest.raises(StartError) as refused:
        keys_in(path)
    assert str(refused.value).startswith(f"webhooks.mail.secret_file: {path} {said}")
    for word in content.split():
        assert word == "whsec_" or word not in str(refused.value)


async def test_a_changed_secret_is_used_at_once(
    receiver: Receiver, tmp_path: Path
) -> None:
    path = secret_file(tmp_path, SECRET)
    async with sender_to(receiver.url, secret_file=path) as sender:
        await sender.post("msg_1", BODY)
        path.write_text(SECOND_SECRET)
        await sender.post("msg_2", BODY)
        path.write_text("")
        with pytest.raises(StartError, match="is empty"):
            await sender.post("msg_3", BODY)
    first, second = receiver.received
    first.verify(SECRET)
    second.verify(SECOND_SECRET)


# --- the answer -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        (OK, 204, ""),
        (answering(422, b"no such\n\x1buser"), 422, r"no such\n\x1buser"),
        (answering(500, b"\xff"), 500, "\ufffd"),
        (answering(307, Location="http://127.0.0.1:9/"), 307, ""),
        (hanging, None, "no answer within 9 s"),
        (resetting, None, "Connection reset by peer"),
        (ending(), None, "it closed the connection without an answer"),
        (ending(HEAD[:9]), None, "it closed the connection without an answer"),
        (saying(HEAD[:20]), None, "no answer within 9 s"),
        (saying(b"SSH-2.0-x\r\n\r\n"), None, "illegal status line"),
        (ending(HEAD + b"hal"), 200, ""),
        (saying(HEAD + b"hal"), 200, ""),
        (endless, 200, r"\x00" * ANSWER_BYTES),
    ],
    ids=[
        *("accepted", "refused", "failed", "redirect", "hangs", "resets", "ends"),
        *("half a head", "slow head", "not HTTP", "half a body", "slow body"),
        "endless",
    ],
)
async def test_an_answer_of_any_kind_comes_to_an_end(
    receiver: Receiver, how: receivers.Answer, status: int | None, said: str
) -> None:
    receiver.usually = how
    answer = await posted(receiver.url, timeout_s=9)
    assert answer.status == status
    assert answer.text[: len(said)] == said
    assert len(receiver.received) == 1


INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FIELD: Final = b"A: b\r\n"


@pytest.mark.parametrize(
    ("begin", "again", "status", "said"),
    [
        (b"", INTERIM, None, "the head of its answer has"),
        (b"", INTERIM[:-2] + 80 * FIELD + b"\r\n", None, "the head of its answer has"),
        (HEAD[:-2], FIELD, None, "the head of its answer has more than 16384 bytes"),
        (HEAD[:-2], b"x", None, "the head of its answer has more than 16384 bytes"),
        (CHUNKED, b"1\r\nx\r\n", 200, "xxx"),
        (CHUNKED + b"1;", b"e", 200, ""),
        (CHUNKED + b"0\r\n", FIELD, 200, ""),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"x", 200, "xxx"),
    ],
    ids=[
        *("interim", "large interim", "fields", "field"),
        *("chunks", "extension", "trailers", "until its end"),
    ],
)
async def test_an_answer_without_end_is_parsed_in_small_pieces_up_to_a_bound(
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    begin: bytes,
    again: bytes,
    status: int | None,
    said: str,
) -> None:
    receiver.usually = flooding(begin, again)
    parsing = Parsing(monkeypatch)
    answer = await posted(receiver.url, timeout_s=9)
    assert (answer.status, answer.text[: len(said)]) == (status, said)
    assert parsing.bytes <= MOST_BYTES
    assert parsing.most_bytes_in_a_pass <= READ_BYTES
    # A chunk of a byte takes six.
    assert parsing.most_events_in_a_pass <= READ_BYTES // 6 + 3


async def test_of_several_answers_without_end_one_piece_is_parsed_in_a_pass(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.usually = flooding(CHUNKED, b"1\r\nx\r\n")
    parsing = Parsing(monkeypatch)
    turnstile = Turnstile()
    statuses: list[int | None] = []

    async def post() -> None:
        async with sender_to(receiver.url, turnstile) as sender:
            statuses.append((await sender.post("msg_1", BODY)).status)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(post)
    assert statuses == [200] * 3
    assert parsing.most_bytes_in_a_pass == READ_BYTES


@pytest.mark.parametrize("status", [200, 299, 302, 400, 401, 404, 410, 422, 429, 503])
def test_the_status_says_whether_a_record_is_accepted_or_refused(status: int) -> None:
    answer = PostAnswer(status, "")
    assert answer.is_accepted == (status < 300)
    assert answer.is_refused == (400 <= status < 500 and status not in TRY_AGAIN)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        ("9" * 5_000, math.inf),
        ("1.5", 0),
        ("Thu, 26 Nov 2026 04:43:48 GMT", 0),
    ],
)
async def test_the_receiver_asks_for_a_wait_in_seconds(
    receiver: Receiver, header: str, seconds: float
) -> None:
    receiver.usually = answering(429, Retry_After=header)
    assert (await posted(receiver.url)).retry_after == seconds


async def test_a_connection_is_used_again_soon_unless_the_receiver_has_closed_it(
    receiver: Receiver,
) -> None:
    async with sender_to(receiver.url) as sender:
        for number, how in enumerate((OK, ending(HEAD + b"hello"), OK, OK)):
            receiver.next.append(how)
            assert (await sender.post(f"msg_{number}", BODY)).is_accepted
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(sender_module.KEPT_S)
        assert (await sender.post("msg_4", BODY)).is_accepted
    assert [request.connection for request in receiver.received] == [1, 1, 2, 2, 3]


async def test_a_connection_is_not_used_again_after_more_than_one_answer(
    receiver: Receiver,
) -> None:
    """The second one would be taken for the answer to the next request."""
    receiver.next.append(saying(2 * (HEAD + b"12345")))
    async with sender_to(receiver.url) as sender:
        for number in range(2):
            assert (await sender.post(f"msg_{number}", BODY)).is_accepted
    assert [request.connection for request in receiver.received] == [1, 2]


# --- TLS ------------------------------------------------------------------------------


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server, certificates.server_key)
    return context


async def test_a_certificate_is_checked_for_the_host_of_the_url(
    jumping: MockClock, certificates: Certificates
) -> None:
    names: list[str | None] = []
    context = server_context(certificates)
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    async with receiving(context) as receiver:
        ca = certificates.ca
        by_name = await posted(receiver.url_of("localhost"), ca_file=ca)
        assert (by_name.is_accepted, by_name.text) == (True, "")
        assert names == ["localhost"]
        assert receiver.received[0].headers["host"] == f"localhost:{receiver.port}"
        # Another way to write 127.0.0.1, which the certificate does not have.
        other = await posted(receiver.url_of("127.1"), ca_file=ca, allow_private=True)
        assert "certificate is not valid" in other.text
        assert len(receiver.received) == 1


async def test_a_certificate_of_an_unknown_authority_is_not_accepted(
    jumping: MockClock, certificates: Certificates
) -> None:
    async with receiving(server_context(certificates)) as receiver:
        answer = await posted(receiver.url)
        assert not answer.is_refused
        assert answer.text.endswith("; correct it, or set ca_file")
        assert not receiver.received


async def no_tls(stream: trio.abc.Stream) -> None:
    """Another protocol, in plain text."""
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def no_handshake(_stream: trio.abc.Stream) -> None:
    """A connection that is accepted, and nothing more."""
    await trio.sleep_forever()


Serve: TypeAlias = Callable[[trio.abc.Stream], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, host: str, port: int = 0) -> AsyncIterator[int]:
    """Serve connections to this address of loopback; yields the port."""
    listeners = await trio.open_tcp_listeners(port, host=host)
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, serve, listeners)
        yield int(listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (no_tls, "no TLS: "),
        (no_handshake, "no connection in time; is the address right?"),
    ],
)
async def test_a_handshake_that_fails_or_hangs_ends(
    jumping: MockClock, serve: Serve, said: str
) -> None:
    async with serving(serve, LOOPBACK) as port:
        answer = await posted(f"https://{LOOPBACK}:{port}/", timeout_s=9)
    assert answer.status is None
    assert answer.text.startswith(said)


def test_a_file_of_certificates_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_text("none")
    chosen = WebhookSettings(
        url="https://127.0.0.1/", secret_file=SECRET_FILE, ca_file=path
    )
    (error,) = check_webhook("mail", chosen)
    assert str(error).startswith(f"webhooks.mail.ca_file: {path} cannot be used (")


# --- addresses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("127.1", "of this host; correct the url, or what its host resolves to; or set "
            "webhooks.mail.allow_private to true"),
        ("10.0.0.5", "private"),
        ("[64:ff9b::a9fe:a9fe]", "link-local; correct the url, or what its host "),
    ],
)  # fmt: skip
async def test_an_address_that_is_not_allowed_is_not_connected_to(
    receiver: Receiver, host: str, why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        await posted(receiver.url_of(host).replace("http:", "https:"))
    assert f"an address that is {why}" in str(refused.value)
    assert not receiver.connections


async def test_the_address_that_was_checked_is_connected_to(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that means another address whenever it is asked for (DNS rebinding)."""
    resolve, answers = socket.getaddrinfo, iter(["127.0.0.1", "169.254.169.254"])

    def rebinding(host: Any, *args: Any, **options: Any) -> Any:
        name = next(answers) if host == "hook.example" else host
        return resolve(name, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(sender_module, "KEPT_S", 0.0)
    url = receiver.url_of("hook.example")
    async with sender_to(url, allow_private=True) as sender:
        assert (await sender.post("msg_1", BODY)).status == 204
        host = f"hook.example:{receiver.port}"
        assert receiver.received[0].headers["host"] == host
        with pytest.raises(ConfigError, match=r"169\.254\.169\.254"):
            await sender.post("msg_2", BODY)


async def test_no_public_address_is_posted_to_without_encryption(
    receiver: Receiver,
) -> None:
    with pytest.raises(ConfigError, match=r"public, and http:// is not encrypted"):
        await posted("http://192.88.98.1/", allow_private=True)


@pytest.mark.parametrize("is_dead", [True, False], ids=["dead", "hangs"])
async def test_the_next_address_is_tried_if_the_first_is_dead_or_hangs(
    jumping: MockClock,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    is_dead: bool,
) -> None:
    resolve, first = socket.getaddrinfo, "127.0.0.2"

    def two(host: Any, *args: Any, **options: Any) -> Any:
        if host != "localhost":
            return resolve(host, *args, **options)
        return [
            place for it in (first, LOOPBACK) for place in resolve(it, *args, **options)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(
            receiving(server_context(certificates))
        )
        if not is_dead:
            await stack.enter_async_context(serving(no_handshake, first, receiver.port))
        url = receiver.url_of("localhost")
        answer = await posted(url, ca_file=certificates.ca, timeout_s=9)
    assert answer.is_accepted
    assert answer.seconds < 9


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("nobody.invalid", "the host cannot be resolved: "),
        ("a" * 64 + ".example", "encod"),
        ("a..b", "encod"),
    ],
)
async def test_a_name_without_an_address_is_no_answer(
    jumping: MockClock, host: str, said: str
) -> None:
    answer = await posted(f"https://{host}/", timeout_s=300)
    assert answer.status is None
    assert said in answer.text


async def test_a_refused_connection_is_no_answer(jumping: MockClock) -> None:
    answer = await posted(f"http://127.0.0.1:{free_port()}/")
    assert (answer.status, answer.short) == (None, "Connection refused")

"""Posts bodies to one receiver: HTTP/1.1, by h11.

Redirects are not followed, no proxy or password comes from the environment, and no cookie
is kept. The url's host is resolved here, and each address is checked. Connections go to
these addresses, so the name is not resolved a second time.

A receiver may send anything during an attempt. So little of an answer is read, and in small
pieces: other tasks of the event loop run before each is parsed.
"""

import errno
import hmac
import os
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from ipaddress import ip_address
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

import h11
import trio

from liveness.config.outlet_settings import SECRET_RULE, WebhookSettings, secret_key
from liveness.config.secret_file import read_secret
from liveness.errors import ConfigError, StartError
from liveness.service.common.clock import Clock
from liveness.service.common.threads import in_thread
from liveness.service.common.turnstile import Turnstile
from liveness.service.outlets.webhooks.address_check import why_refused
from liveness.service.outlets.webhooks.cloud_events import CONTENT_TYPE
from liveness.text import printable

# A connection is used again within this time: a backlog is sent over one. Servers close those
# that were idle for some seconds, perhaps just as a request is sent.
KEPT_S: Final = 1.0
# The most addresses of a host that are tried in one attempt.
MOST_ADDRESSES: Final = 4
# A resolver may block for a minute, so it does not use the threads of the disk.
RESOLVER_THREADS: Final = 1
# Some hundred chunks or headers, which h11 parses in 2 ms.
READ_BYTES: Final = 1_024
# Bytes of an answer that are read, with the interim answers (1xx) before it.
MOST_BYTES: Final = 16_384
# Bytes of its body that are kept, for a person to read.
ANSWER_BYTES: Final = 500
# Request timeout, too early, too many requests: none is about the records. The others
# usually mean that the url, the secret or something before the receiver is wrong.
TRY_AGAIN: Final = frozenset({401, 403, 404, 405, 407, 408, 410, 425, 429})
# Errors that end an attempt.
_FAILURES: Final = (
    h11.ProtocolError,
    OSError,
    UnicodeError,  # a host that no DNS name can be
    trio.BrokenResourceError,
    trio.TooSlowError,
)
# Characters not escaped in the target of a request: %, and those allowed in a url.
_IN_TARGETS: Final = "%/?:@!$&'()*+,;=-._~[]"

_Connection: TypeAlias = tuple[trio.abc.Stream, h11.Connection]


class PostAnswer(NamedTuple):
    """The answer to one attempt, or why there was none."""

    status: int | None  # of HTTP; None: there was no answer
    text: str  # the beginning of the answer's body, or why there was none
    seconds: float = 0.0
    retry_after: float = 0.0  # the seconds that it asks to wait for

    @property
    def is_accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_refused(self) -> bool:
        """Whether the receiver does not want a record; else it failed: try again.

        A redirect is a failure, and is not followed: it could lead the records anywhere.
        """
        status = self.status
        return status is not None and 400 <= status < 500 and status not in TRY_AGAIN

    @property
    def short(self) -> str:
        return self.text if self.status is None else f"it answered {self.status}"


class WebhookSender:
    """Signs, connects, posts, and reads the answer.

    The turnstile is passed before each piece of an answer is parsed.
    """

    def __init__(
        self, name: str, settings: WebhookSettings, clock: Clock, turnstile: Turnstile
    ) -> None:
        self._name = name
        self._settings = settings
        self._clock = clock
        self._turnstile = turnstile
        parts = settings.parts
        self._host = (parts.hostname or "").rstrip(".")
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._target = quote(target, safe=_IN_TARGETS)
        # Files are read when needed: a bad one stops only this outlet.
        self._tls: ssl.SSLContext | None = None
        self._resolver = trio.CapacityLimiter(RESOLVER_THREADS)
        self._kept: _Connection | None = None
        self._kept_until = 0.0

    async def read_files(self) -> None:
        """Read `ca_file` again, and check the secrets.

        Raises:
            StartError: A file cannot be read, or is wrong.
        """
        self._tls = await in_thread(partial(tls_context, self._name, self._settings))
        await self._secrets()

    async def post(self, webhook_id: str, body: bytes) -> PostAnswer:
        """Make one attempt, within `timeout_s`.

        The status alone decides the outcome, even if the rest of the answer never comes.

        Raises:
            ConfigError: The host has an address that is not allowed.
            StartError: See `read_files`. The secrets are read for each attempt, as they may
                change.
        """
        if self._tls is None:
            await self.read_files()
        keys = await self._secrets()
        began, head, said, why = trio.current_time(), None, bytearray(), ""
        with trio.move_on_after(self._settings.timeout_s) as within:
            try:
                async with self._connected() as (stream, http):
                    # The receiver may have answered before it closed the connection.
                    with suppress(trio.BrokenResourceError):
                        data = self._request(http, keys, webhook_id, body)
                        await stream.send_all(data)
                    async for event in self._answer(stream, http):
                        if isinstance(event, h11.Response):
                            head = event
                        elif isinstance(event, h11.Data):
                            said += event.data
            except _FAILURES as error:
                why = _why(error)
        if within.cancelled_caught:
            why = f"no answer within {self._settings.timeout_s:g} s"
        seconds = trio.current_time() - began
        if head is None:
            return PostAnswer(None, why, seconds)
        text = printable(said[:ANSWER_BYTES].decode(errors="replace"))
        asked = dict(head.headers).get(b"retry-after", b"")
        wait_s = float(asked) if asked.isdigit() else 0.0
        return PostAnswer(head.status_code, text, seconds, wait_s)

    async def _secrets(self) -> list[bytes]:
        return await in_thread(partial(secrets, self._name, self._settings))

    def _request(
        self, http: h11.Connection, keys: list[bytes], webhook_id: str, body: bytes
    ) -> bytes:
        """A request, signed by each secret as Standard Webhooks says."""
        at = self._clock.wall_ms() // 1000
        signed = b"%b.%d.%b" % (webhook_id.encode(), at, body)
        digests = (b64encode(hmac.digest(key, signed, "sha256")) for key in keys)
        request = h11.Request(
            method="POST",
            target=self._target,
            headers=[
                ("host", self._settings.parts.netloc),
                ("user-agent", "liveness"),
                ("content-type", CONTENT_TYPE),
                ("content-length", f"{len(body)}"),
                ("webhook-id", webhook_id),
                ("webhook-timestamp", f"{at}"),
                ("webhook-signature", " ".join(f"v1,{it.decode()}" for it in digests)),
            ],
        )
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        return b"".join(http.send(event) or b"" for event in events)

    async def _answer(
        self, stream: trio.abc.Stream, http: h11.Connection
    ) -> AsyncIterator[h11.Event]:
        """The events of an answer, up to its end or `MOST_BYTES`."""
        room, has_head = MOST_BYTES, False
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                if not room:
                    break
                data = await stream.receive_some(min(READ_BYTES, room))
                if not data and not has_head:
                    raise ConnectionError("it closed the connection without an answer")
                room -= len(data)
                await self._turnstile.wait()
                http.receive_data(bytes(data))
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return
            else:
                assert isinstance(event, h11.Event)
                has_head |= isinstance(event, h11.Response)
                yield event
        if not has_head:
            raise ConnectionError(
                f"the head of its answer has more than {MOST_BYTES} bytes; correct the "
                "url, or the receiver"
            )

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator["_Connection"]:
        """A connection for one request; it is kept if the whole answer was read."""
        connection = self._take_kept()
        if connection is None:
            http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_BYTES)
            connection = await self._dial(), http
        stream, http = connection
        try:
            yield connection
            is_free = http.our_state is http.their_state is h11.DONE
            if is_free and not http.trailing_data[0] and self._kept is None:
                http.start_next_cycle()
                self._kept, self._kept_until = connection, trio.current_time() + KEPT_S
        finally:
            if self._kept is not connection:
                await trio.aclose_forcefully(stream)

    def _take_kept(self) -> "_Connection | None":
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        stream = kept[0]
        if isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        assert isinstance(stream, trio.SocketStream)
        # The receiver's end makes the socket readable.
        if trio.current_time() < self._kept_until and not stream.socket.is_readable():
            return kept
        stream.socket.close()
        return None

    def close(self) -> None:
        self._kept_until = 0.0
        self._take_kept()

    async def _dial(self) -> trio.abc.Stream:
        """Connect to the first address that accepts.

        Each has an equal share of the time, and so has the answer.
        """
        addresses = await self._checked_addresses()
        left_s = max(0.0, trio.current_effective_deadline() - trio.current_time())
        share_s = left_s / (len(addresses) + 1)
        while True:
            address, *addresses = addresses
            try:
                with trio.fail_after(share_s):
                    return await self._connect(address)
            except (OSError, trio.BrokenResourceError, trio.TooSlowError):
                if not addresses:
                    raise

    async def _connect(self, address: str) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream(address, self._port)
        if self._settings.parts.scheme == "http":
            return stream
        assert self._tls is not None
        encrypted = trio.SSLStream(
            stream, self._tls, server_hostname=self._host, https_compatible=True
        )
        try:
            await encrypted.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return encrypted

    async def _checked_addresses(self) -> list[str]:
        """Addresses of the url's host; an error unless all are allowed."""
        try:
            found = [str(ip_address(self._host))]
        except ValueError:
            resolve = partial(
                socket.getaddrinfo, self._host, None, type=socket.SOCK_STREAM
            )
            places = await in_thread(
                resolve, limiter=self._resolver, abandon_on_cancel=True
            )
            found = [*dict.fromkeys(str(place[0]) for *_, place in places)]
        for address in found:
            self._check(address)
        return found[:MOST_ADDRESSES]

    def _check(self, address: str) -> None:
        settings = self._settings
        why = why_refused(
            address,
            allow_private=settings.allow_private,
            loopback_only=settings.is_to_loopback,
            is_encrypted=settings.parts.scheme == "https",
        )
        if not why:
            return
        remedy = "correct the url, or what its host resolves to"
        if why in ("of this host", "private"):
            remedy += f"; or set {self._name}.allow_private to true"
        raise ConfigError(
            f"{self._name}.url: {self._host} is {address}, an address that is {why}; "
            f"{remedy}"
        )


def secrets(name: str, settings: WebhookSettings) -> list[bytes]:
    """The keys that sign the requests of an outlet.

    Raises:
        StartError: They cannot be read, or one is not valid. It never shows them.
    """
    setting, path = f"{name}.secret_file", settings.secret_file
    keys = []
    lines = read_secret(setting, path, "secret").splitlines()
    for number, line in enumerate(lines, 1):
        if text := line.decode("ascii", "replace").strip():
            try:
                keys.append(secret_key(text))
            except ValueError:
                why = f"has no secret in line {number}: it must be {SECRET_RULE}"
                raise StartError(f"{setting}: {path} {why}") from None
    if not keys:
        why = f"is empty; put a line there: {SECRET_RULE}"
        raise StartError(f"{setting}: {path} {why}")
    return keys


def tls_context(name: str, settings: WebhookSettings) -> ssl.SSLContext:
    """The TLS context, which checks the receiver's certificate.

    Raises:
        StartError: `ca_file` is not a file of certificates.
    """
    if settings.parts.scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # unused: read no files
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        raise StartError(
            f"{name}.ca_file: {settings.ca_file} cannot be used "
            f"({error.strerror or error}); name a readable file of certificates in PEM"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def check_webhook(name: str, settings: WebhookSettings) -> Iterator[StartError]:
    """Try the secrets and certificates of `[webhooks.NAME]`, for `check-config`."""
    for use in (secrets, tls_context):
        try:
            use(f"webhooks.{name}", settings)
        except StartError as error:
            yield error


def _why(error: BaseException) -> str:
    """Why there was no answer, and what to do."""
    cause: BaseException | None = error
    while cause is not None:
        match cause:
            case ssl.SSLCertVerificationError():
                why = cause.verify_message
                return (
                    f"its certificate is not valid: {why}; correct it, or set ca_file"
                )
            case ssl.SSLError():
                return f"no TLS: {cause.reason}; does https:// belong into the url?"
            case socket.gaierror():
                return f"the host cannot be resolved: {cause.strerror}"
            case trio.TooSlowError():
                return "no connection in time; is the address right?"
            case OSError(errno=int(number)) if number in errno.errorcode:
                return os.strerror(number)  # without the address
        cause = cause.__cause__ or cause.__context__
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
    return printable(str(error)[:ANSWER_BYTES]) or type(error).__name__

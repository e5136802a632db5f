"""Posts bodies to one receiver.

Redirects are not followed, no proxy or password comes from the environment, and no cookie
is kept. The url's host is resolved here, and each address is checked. Connections go to
these addresses, so the name is not resolved a second time.
"""

import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from math import inf
from typing import Final
from urllib.parse import quote

import h11
import trio

from liveness.config.outlet_settings import WebhookSettings
from liveness.config.secret_file import NotReadable
from liveness.errors import ConfigError, StartError
from liveness.service.common.clock import Clock
from liveness.service.common.threads import in_thread
from liveness.service.common.turnstile import Turnstile
from liveness.service.outlets.webhooks.address_check import why_refused
from liveness.service.outlets.webhooks.answers import PostAnswer
from liveness.service.outlets.webhooks.cloud_events import CONTENT_TYPE
from liveness.service.outlets.webhooks.post_connection import (
    ClosedUnanswered,
    NoAnswer,
    PostConnection,
)
from liveness.service.outlets.webhooks.signing import Signer
from liveness.text import printable

# The longest time for which secrets and resolved addresses are used.
READ_AGAIN_S: Final = 60.0
# The most addresses of a host that are tried in one attempt.
MOST_ADDRESSES: Final = 4
# Requests in flight at a time: one from the log, and some by operators.
MOST_CONNECTIONS: Final = 4
# A connection idle for longer is not used again: many receivers close it after 5 s.
IDLE_S: Final = 4.0
# Bytes of an answer that are kept, for a person to read.
ANSWER_BYTES: Final = 500
# A resolver may block for a minute, so it does not use the threads of the disk.
RESOLVER_THREADS: Final = 1
# Errors that end an attempt.
_FAILURES: Final = (
    NoAnswer,
    h11.ProtocolError,
    OSError,
    trio.BrokenResourceError,
    trio.TooSlowError,
)
# Characters not escaped in the target of a request: %, and those allowed in a url.
_IN_TARGETS: Final = "%/?:@!$&'()*+,;=-._~[]"


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
        self._signer: Signer | None = None
        self._in_flight = trio.CapacityLimiter(MOST_CONNECTIONS)
        self._idle: list[PostConnection] = []
        self._resolver = trio.CapacityLimiter(RESOLVER_THREADS)
        self._addresses: list[str] = []
        self._secrets_until = self._addresses_until = -inf

    async def post(self, webhook_id: str, body: bytes) -> PostAnswer:
        """Make one attempt, within `timeout_s`.

        The status alone decides the outcome, even if the rest of the answer never comes.

        Raises:
            ConfigError: The host has an address that is not allowed.
            StartError: See `read_files`.
        """
        tls, signer = await self.read_files()
        began = trio.current_time()
        status, retry_after, text = None, None, ""
        with trio.move_on_after(self._settings.timeout_s) as within:
            try:
                headers = signer.headers(webhook_id, body, self._clock.wall_ms())
                async with self._answer(tls, headers, body) as (answer, connection):
                    status = answer.status_code
                    retry_after = _retry_after(answer)
                    data = await connection.read_body(self._settings.max_answer_bytes)
                    text = printable(data[:ANSWER_BYTES].decode(errors="replace"))
            except _FAILURES as error:
                self._addresses_until = -inf
                text = "" if status else _why(error)
        if within.cancelled_caught and status is None:
            self._addresses_until = -inf
            text = f"no answer within {self._settings.timeout_s:g} s"
        seconds = trio.current_time() - began
        return PostAnswer(status, text, seconds, retry_after)

    async def read_files(self) -> tuple[ssl.SSLContext, Signer]:
        """Read `ca_file`, and the secrets, which are read again later, as they may change.

        Raises:
            StartError: A file cannot be read, or is wrong.
        """
        signer, tls = self._signer, self._tls
        if signer is None or trio.current_time() >= self._secrets_until:
            make = partial(Signer, self._name, self._settings)
            signer = self._signer = await in_thread(make)
            self._secrets_until = trio.current_time() + READ_AGAIN_S
        if tls is None:
            made = await in_thread(partial(tls_context, self._name, self._settings))
            tls = self._tls = self._tls or made
        return tls, signer

    async def close(self) -> None:
        """Close the connections; a later `post` reads `ca_file` again and opens others."""
        self._tls = None
        while self._idle:
            await self._idle.pop().aclose()

    @asynccontextmanager
    async def _answer(
        self, tls: ssl.SSLContext, signed: dict[str, str], body: bytes
    ) -> AsyncIterator[tuple[h11.Response, PostConnection]]:
        """The head of an answer, and its connection, which has the body."""
        headers = {
            "host": self._settings.parts.netloc,
            "user-agent": "liveness",
            "content-type": CONTENT_TYPE,
            **signed,
        }
        async with self._in_flight:
            connection = await self._kept() or await self._connect(tls)
            try:
                try:
                    answer = await connection.post(self._target, headers, body)
                except ClosedUnanswered:
                    if connection.is_new:
                        raise
                    # The receiver closed it while it was idle: that is no failed attempt.
                    await connection.aclose()
                    connection = await self._connect(tls)
                    answer = await connection.post(self._target, headers, body)
                yield answer, connection
            finally:
                if connection.can_be_kept():
                    self._idle.append(connection)
                else:
                    await connection.aclose()

    async def _kept(self) -> PostConnection | None:
        """A usable connection from an earlier request, if any."""
        addresses = await self._checked_addresses()
        oldest = trio.current_time() - IDLE_S
        while self._idle:
            kept = self._idle.pop()
            if kept.used_at > oldest and kept.address in addresses and kept.is_open():
                return kept
            await kept.aclose()
        return None

    async def _connect(self, tls: ssl.SSLContext) -> PostConnection:
        """Connect to the first address that accepts; each has an equal share of the time."""
        addresses = await self._checked_addresses()
        left_s = trio.current_effective_deadline() - trio.current_time()
        share_s = left_s / (len(addresses) + 1)  # one share is for the answer
        while True:
            address, *addresses = addresses
            try:
                with trio.fail_after(share_s):
                    return await self._connected(address, tls)
            except (OSError, trio.BrokenResourceError, trio.TooSlowError):
                if not addresses:
                    raise

    async def _connected(self, address: str, tls: ssl.SSLContext) -> PostConnection:
        stream = await trio.open_tcp_stream(address, self._port)
        sock = stream.socket
        if self._settings.parts.scheme == "http":
            return PostConnection(stream, sock, address, self._turnstile)
        encrypted = trio.SSLStream(
            stream, tls, server_hostname=self._host, https_compatible=True
        )
        try:
            await encrypted.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return PostConnection(encrypted, sock, address, self._turnstile)

    async def _checked_addresses(self) -> list[str]:
        """Addresses of the url's host; an error unless all are allowed."""
        if trio.current_time() >= self._addresses_until:
            found = await self._resolved()
            for address in found:
                self._check(address)
            self._addresses = found[:MOST_ADDRESSES]
            self._addresses_until = trio.current_time() + READ_AGAIN_S
        return self._addresses

    async def _resolved(self) -> list[str]:
        try:
            return [str(ip_address(self._host))]
        except ValueError:
            resolve = partial(
                socket.getaddrinfo, self._host, None, type=socket.SOCK_STREAM
            )
        found = await in_thread(resolve, limiter=self._resolver, abandon_on_cancel=True)
        return [*dict.fromkeys(str(place[0]) for *_, place in found)]

    def _check(self, address: str) -> None:
        settings = self._settings
        why = why_refused(
            address,
            allow_private=settings.allow_private,
            loopback_only=settings.is_to_loopback,
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


def _retry_after(answer: h11.Response) -> str | None:
    found = dict(answer.headers).get(b"retry-after")
    return None if found is None else found.decode("latin-1")


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
        refusal = NotReadable if isinstance(error, PermissionError) else StartError
        raise refusal(
            f"{name}.ca_file: {settings.ca_file} cannot be used "
            f"({error.strerror or error}); name a readable file of certificates in PEM"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def check_webhook(name: str, settings: WebhookSettings) -> Iterator[StartError]:
    """Try the secrets and certificates of `[webhooks.NAME]`, for `check-config`."""
    for use in (Signer, tls_context):
        try:
            use(f"webhooks.{name}", settings)
        except StartError as error:
            yield error


def _why(error: BaseException) -> str:
    """Why there was no answer, and what to do, from the first cause that is known."""
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

"""Posts bodies to one receiver, by httpx2: the only module that knows it.

Its transport alone is used. So redirects are not followed, no proxy or password comes from
the environment, and no cookie is kept. The url's host is resolved here, each address is
checked, and the transport is given an address: nothing is resolved a second time.
"""

import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from math import inf
from typing import Final

import httpx2
import trio

from liveness.config.outlet_settings import WebhookSettings
from liveness.config.secret_file import NotReadable
from liveness.errors import ConfigError, StartError
from liveness.outlets.webhooks.address_check import why_refused
from liveness.outlets.webhooks.answers import PostAnswer
from liveness.outlets.webhooks.cloud_events import CONTENT_TYPE
from liveness.outlets.webhooks.signing import Signer
from liveness.service.common.clock import Clock
from liveness.service.common.threads import in_thread
from liveness.text import printable

# How old secrets and resolved addresses may be.
READ_AGAIN_S: Final = 60.0
# Addresses of one host that are tried in one attempt.
MOST_ADDRESSES: Final = 4
# Requests in flight at a time: one from the log, and some by hand.
MOST_CONNECTIONS: Final = 4
# An idle connection is closed sooner than receivers do: many wait for 5 s. A request on
# one that the receiver closes just then would fail.
IDLE_S: Final = 4.0
# How much of an answer is kept, for a person to read.
ANSWER_BYTES: Final = 500
# A resolver may block for a minute, so it does not use the threads of the disk.
RESOLVER_THREADS: Final = 1


def load_transport() -> None:
    """Import what httpx2 imports only when a transport is made.

    That takes some tenths of a second, in which the sidecar would read no gateway.
    """
    httpx2.AsyncHTTPTransport(
        verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), trust_env=False
    )


class WebhookSender:
    """Signs, connects, posts, and reads the answer.

    Args:
        name: The outlet, such as `webhooks.mail`.
        settings: Its settings.
        clock: The clocks.
    """

    def __init__(self, name: str, settings: WebhookSettings, clock: Clock) -> None:
        self._name = name
        self._settings = settings
        self._clock = clock
        self._host = (settings.parts.hostname or "").rstrip(".")
        self._url = httpx2.URL(settings.url)
        # Files are read when they are needed: a bad one stops only this outlet.
        self._transport: httpx2.AsyncHTTPTransport | None = None
        self._signer: Signer | None = None
        self._resolver = trio.CapacityLimiter(RESOLVER_THREADS)
        self._addresses: list[str] = []
        self._secrets_until = self._addresses_until = -inf

    async def post(self, webhook_id: str, body: bytes) -> PostAnswer:
        """Make one attempt, within `timeout_s`.

        The status alone decides the outcome, even if the rest of the answer never comes.

        Raises:
            ConfigError: The host has an address that is not allowed.
            StartError: As `read_files`.
        """
        transport, signer = await self.read_files()
        began = trio.current_time()
        status, retry_after, text = None, None, ""
        with trio.move_on_after(self._settings.timeout_s) as within:
            try:
                headers = signer.headers(webhook_id, body, self._clock.wall_ms())
                async with self._answer(transport, headers, body) as answer:
                    status = answer.status_code
                    retry_after = answer.headers.get("retry-after")
                    text = await self._read(answer)
            except (httpx2.HTTPError, OSError) as error:
                self._addresses_until = -inf
                text = "" if status else _why(error)
        if within.cancelled_caught and status is None:
            self._addresses_until = -inf
            text = f"no answer within {self._settings.timeout_s:g} s"
        seconds = trio.current_time() - began
        return PostAnswer(status, text, seconds, retry_after)

    async def read_files(self) -> tuple[httpx2.AsyncHTTPTransport, Signer]:
        """Read `ca_file`, and the secrets, which are read again as they may change.

        Raises:
            StartError: A file cannot be read, or is wrong.
        """
        signer, transport = self._signer, self._transport
        if signer is None or trio.current_time() >= self._secrets_until:
            make = partial(Signer, self._name, self._settings)
            signer = self._signer = await in_thread(make)
            self._secrets_until = trio.current_time() + READ_AGAIN_S
        if transport is None:
            made = await in_thread(partial(_transport, self._name, self._settings))
            transport = self._transport = self._transport or made
        return transport, signer

    async def close(self) -> None:
        """Close the connections; a later `post` reads `ca_file` again and opens others."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    @asynccontextmanager
    async def _answer(
        self,
        transport: httpx2.AsyncHTTPTransport,
        signed: dict[str, str],
        body: bytes,
    ) -> AsyncIterator[httpx2.Response]:
        """The head of the answer, from the first address that accepts a connection."""
        addresses = await self._checked_addresses()
        headers = {
            "host": self._settings.parts.netloc,
            "user-agent": "liveness",
            "content-type": CONTENT_TYPE,
            **signed,
        }
        # Only the transport's own timeout closes a connection in a handshake that hangs;
        # cancelling does not. It applies to connecting and to the handshake separately.
        left_s = trio.current_effective_deadline() - trio.current_time()
        connect_s = left_s / (2 * len(addresses))
        answer: httpx2.Response | None = None
        for address in addresses:
            request = httpx2.Request(
                "POST",
                self._url.copy_with(host=address),
                headers=headers,
                content=body,
                extensions={
                    "sni_hostname": self._host,
                    "timeout": {"connect": connect_s},
                },
            )
            try:
                answer = await transport.handle_async_request(request)
                break
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if address == addresses[-1]:
                    raise
        assert answer is not None
        try:
            yield answer
        finally:
            await answer.aclose()

    async def _read(self, answer: httpx2.Response) -> str:
        """The text of an answer, or its beginning."""
        data = bytearray()
        # Not `break`: the generators inside that of `aiter_raw` would be left unfinished.
        with trio.CancelScope() as enough:
            async for part in answer.aiter_raw():
                data += part
                if len(data) >= self._settings.max_answer_bytes:
                    enough.cancel()
        return printable(data[:ANSWER_BYTES].decode(errors="replace"))

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


def _transport(name: str, settings: WebhookSettings) -> httpx2.AsyncHTTPTransport:
    """The transport, which keeps the connections.

    Raises:
        StartError: As `tls_context`.
    """
    return httpx2.AsyncHTTPTransport(
        verify=tls_context(name, settings),
        trust_env=False,
        limits=httpx2.Limits(max_connections=MOST_CONNECTIONS, keepalive_expiry=IDLE_S),
    )


def tls_context(name: str, settings: WebhookSettings) -> ssl.SSLContext:
    """The TLS context, which checks the receiver's certificate.

    Raises:
        StartError: `ca_file` is not a file of certificates.
    """
    if settings.parts.scheme == "http":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # not used: spare reading files
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        refusal = NotReadable if isinstance(error, PermissionError) else StartError
        raise refusal(
            f"{name}.ca_file: {settings.ca_file} cannot be used "
            f"({error.strerror or error}); name a readable file of certificates in PEM"
        ) from None


def _why(error: BaseException) -> str:
    """Why there was no answer, and what to do: by the first cause that says it."""
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
            case httpx2.ConnectTimeout():
                return "no connection in time; is the address right?"
            case OSError(errno=int(number)) if number in errno.errorcode:
                return os.strerror(number)  # without the address
        cause = cause.__cause__ or cause.__context__
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
    return str(error) or type(error).__name__

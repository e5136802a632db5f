"""Connects to the sidecar again and again: for gateways, watches and questions.

A `SidecarLink` is one connection. It reads only when a frame is requested, and holds at
most what one read brought. `Dialer` makes one link after another, waits between its
attempts, and logs why there is none.
"""

import logging
import os
import random
import secrets
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final

import anyio
import anyio.abc

from liveness.client.protocol import Welcome, welcome_of, wrong_form
from liveness.core.records import WATCHER
from liveness.core.wire.frames import PROTOCOL
from liveness.core.wire.framing import Frame, Reader, encode
from liveness.errors import (
    Code,
    LivenessError,
    Refused,
    Replaced,
    ReportError,
    WireError,
)
from liveness.text import escaped

MAX_SOCKET_PATH_BYTES: Final = 107  # sun_path, without its terminating 0
# The pause after a link has ended, and between two tries to connect. It is random, so
# that not all gateways reach a restarted sidecar at once, and always below a second.
RECONNECT_S: Final = (0.0, 0.5)
RETRY_S: Final = (0.25, 0.75)
# After a refusal for load or a bug of ours, the pause is up to 1 s, 2 s, 4 s and so on. It
# starts over once a link has lasted as long as the longest pause.
MAX_BACKOFF_S: Final = 10.0
# The same after a refusal that only an operator can end, and never below half of it: at
# most this long after the operator has acted, there is a link.
MAX_REFUSED_BACKOFF_S: Final = 30.0
# What the operator can do about these; the sidecar would refuse a new link, too.
REMEDIES: Final[dict[str, str]] = {
    Code.NOT_ALLOWED: "allow its Unix user and name in the sidecar's settings ([access]), "
    "or run it as a user that is allowed",
    Code.BAD_HELLO: "correct the arguments of connect or watch, or update the older one of "
    "this library and the sidecar",
    Code.UNSUPPORTED_PROTOCOL: "update the older one of this library and the sidecar",
}
# A link without a welcome is logged after this long, but kept: a hanging sidecar would read
# the hellos later, and could take the older link for the newer one.
WELCOME_S: Final = 5.0
# A frame from the sidecar has 1,000 records, or a row for each requested uid. It may hold
# four times MAX_BATCH values: 99 for each record, counting keys.
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
MAX_BATCH: Final = 25_000

# Returns the seconds to wait, between the two given ones.
PauseBetween = Callable[[float, float], float]
ReportLine = Callable[[str], None]

logger: Final = logging.getLogger("liveness.client")


def socket_at(path: str | os.PathLike[str] | None) -> str:
    """Check the path of the sidecar's socket; look it up in the settings if None."""
    if path is None:
        from liveness.config.sources import socket_path  # slow, and rarely needed

        path = socket_path(None)
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise ReportError(f"{text!r} is not the path of a socket")
    if (size := len(os.fsencode(text))) > MAX_SOCKET_PATH_BYTES:
        raise ReportError(
            f"the socket's path has {size} bytes, and at most {MAX_SOCKET_PATH_BYTES} "
            f"are possible: {text}"
        )
    return text


def random_name(what: str) -> str:
    """A name for a link that keeps no cursor. A link of the same name would replace it."""
    host = socket.gethostname()[:24]
    return f"{what}-{host}-{os.getpid()}-{secrets.token_hex(4)}"


def watcher_hello(name: str, scope: str, **options: object) -> dict[str, object]:
    hello: dict[str, object] = {"protocol": PROTOCOL, "role": WATCHER, "name": name}
    return {**hello, "scope": scope, **options}


class LinkLost(LivenessError):
    """A link ended. The next one may work."""


class SidecarLink:
    """One connection, of the hello of this name."""

    def __init__(self, stream: anyio.abc.SocketStream, name: str) -> None:
        self._stream = stream
        self._name = name
        self._reader = Reader(max_frame_bytes=MAX_FRAME_BYTES, max_batch=MAX_BATCH)
        self._frames = deque[Frame]()
        self.welcome: Welcome

    async def read_welcome(self) -> None:
        """Wait for the welcome; raise as `next_frame`."""
        while (frame := await self.next_frame())[:1] != ("welcome",):
            pass
        self.welcome = welcome_of(frame)

    async def send(self, frame: list[Any]) -> None:
        await self.send_bytes(encode(frame))

    async def send_bytes(self, data: bytes) -> None:
        """Send frames. If the link has ended, `next_frame` will raise the error.

        If this is cancelled, a part of a frame may be written: close the link.
        """
        with suppress(anyio.BrokenResourceError):
            await self._stream.send(data)

    @property
    def has_frame(self) -> bool:
        return bool(self._frames)

    async def next_frame(self) -> Frame:
        """Return the next frame, which may be an error that is not fatal.

        If this is cancelled, no frame is lost.

        Raises:
            LinkLost: The link has ended.
            Refused: The sidecar has ended the link, with a reason.
            WireError: The peer is no sidecar.
        """
        while not self._frames:
            try:
                data = await self._stream.receive()
            except (
                anyio.EndOfStream,
                anyio.BrokenResourceError,
                anyio.ClosedResourceError,  # by `aclose`, in another task
            ):
                raise LinkLost("the connection was closed") from None
            self._frames.extend(self._reader.feed(data))
        frame = self._frames.popleft()
        check_frame(frame, self._name)
        return frame

    async def aclose(self) -> None:
        """Close the connection; it does not wait."""
        await anyio.aclose_forcefully(self._stream)


class Dialer:
    """Makes links to one sidecar, one after the other.

    Args:
        path: The sidecar's socket.
        name: As in the hellos, and for the log.
        is_gateway: Whether the links are those of a gateway.
        strict: Whether to raise, of a reader, all errors before the first link; later
            refusals that only an operator can end, and a peer that is no sidecar.
        report_line: Called with each line for a person, in place of the logger.
        pause_between: Chooses each pause.
    """

    def __init__(
        self,
        path: str,
        name: str,
        *,
        is_gateway: bool = False,
        strict: bool = False,
        report_line: ReportLine | None = None,
        pause_between: PauseBetween = random.uniform,
    ) -> None:
        self.path = path
        self.failures = 0  # refusals and faults in a row, for the next pause
        self._name = name
        self._is_gateway = is_gateway
        self._is_strict = strict
        self._report_line = report_line
        self._pause_between = pause_between
        self._pause_s = 0.0
        self._needs_link = strict  # until there was one
        self._linked_at = inf  # infinity without a link
        self._logged = ""

    async def open(self, hello: Callable[[], bytes]) -> SidecarLink:
        """Dial until there is a link; raise as `ended`."""
        while True:
            try:
                return await self.dial(hello)
            except (OSError, LivenessError) as error:
                self.ended(error)

    async def dial(self, hello: Callable[[], bytes]) -> SidecarLink:
        """Wait for the end of the pause, connect, and wait for the welcome."""
        await anyio.sleep(self._pause_s)
        link = SidecarLink(await anyio.connect_unix(self.path), self._name)
        try:
            await link.send_bytes(hello())
            with anyio.move_on_after(WELCOME_S) as waiting:
                await link.read_welcome()
            if waiting.cancelled_caught:
                if self._needs_link:
                    raise LinkLost("it does not answer")
                self.say(
                    f"no welcome at {self.path} for {WELCOME_S:g} s; it hangs, or is no "
                    "sidecar. Still waiting"
                )
                await link.read_welcome()
        except BaseException:
            await link.aclose()
            raise
        self._linked_at = anyio.current_time()
        self._needs_link, self._pause_s = False, 0.0
        return link

    def say_linked(self) -> None:
        self.say(f"linked to the sidecar at {self.path}", logging.INFO)

    def ended(self, error: Exception) -> None:
        """Note why a link has ended, or an attempt failed; log it, and choose a pause.

        Raises:
            Replaced: Another process has taken the name; both would replace each other
                for ever.
            OSError, LivenessError: *error*, if strict.
        """
        if isinstance(error, Replaced):
            rest = "this process reads no more"
            if self._is_gateway:
                rest = (
                    f"the users of this process, {os.getpid()}, are not watched, until "
                    "resume() takes the name over again"
                )
            self.say(f"{error}; {rest}", logging.ERROR)
            raise error
        remedy = remedy_of(error)
        is_final = remedy is not None or isinstance(error, WireError)
        if self._needs_link or (self._is_strict and is_final):
            raise error
        self._pause_s = self._pause_between(*self._pause_after(error))
        if remedy is None:
            self.say(f"no link to the sidecar at {self.path}: {_advice(error)}")
            return
        who = "reader"
        if self._is_gateway:
            who = "gateway, so its users are not watched"
        self.say(
            f"the sidecar at {self.path} refuses this {who}: {error}. What to do: "
            f"{remedy}. It is tried again",
            logging.ERROR,
        )

    def _pause_after(self, error: Exception) -> tuple[float, float]:
        """The shortest and the longest pause, in seconds."""
        if anyio.current_time() - self._linked_at >= MAX_BACKOFF_S:
            self.failures = 0
        self._linked_at = inf
        if isinstance(error, OSError | LinkLost):
            self.failures = 0
            return RETRY_S if isinstance(error, OSError) else RECONNECT_S
        is_final = remedy_of(error) is not None
        longest = MAX_REFUSED_BACKOFF_S if is_final else MAX_BACKOFF_S
        longest = min(2.0 ** min(self.failures, 10), longest)
        self.failures += 1
        return (longest / 2 if is_final else 0.0, longest)

    def say(self, line: str, level: int = logging.WARNING) -> None:
        """Log *line*, but not twice in a row: there may be many attempts."""
        if line == self._logged:
            return
        self._logged = line
        if self._report_line is not None:
            self._report_line(line)
        else:
            logger.log(level, "%s: %s", self._name, line)


def check_frame(frame: Frame, name: str) -> None:
    """Raise what ends the link of a hello of this name.

    Raises:
        LinkLost: A bye, which is the last frame.
        Refused: An error that is fatal.
        WireError: A frame of another form than the protocol gives it.
    """
    match frame:
        case ("bye", {"reason": str(reason)}, *_):
            raise LinkLost(f"it says bye: {escaped(reason)}")
        case ("error", {"code": Code.REPLACED, "message": str()}, *_):
            pid = frame[1].get("pid")
            other = pid if type(pid) is int and pid > 0 else None
            taker = "another process" if other is None else f"process {other}"
            raise Replaced(
                Code.REPLACED,
                f"{taker} said hello as {name!r} and has the name now; give each process a "
                f'name of its own, such as name=f"{name}:{{worker}}"',
                pid=other,
            )
        case ("error", {"code": str(code), "message": str(message)}, *_):
            if frame[1].get("fatal", True):
                raise Refused(escaped(code), escaped(message))
        case ("notices", tuple(), *_):
            pass
        case ("bye" | "error" | "notices", *_):
            raise wrong_form(frame)
        case _:
            pass  # of a later version; the protocol allows ignoring it


def remedy_of(error: Exception) -> str | None:
    """What an operator has to do about a refusal; None if it may end without that."""
    return REMEDIES.get(error.code) if isinstance(error, Refused) else None


def _advice(error: Exception) -> str:
    match error:
        case FileNotFoundError() | ConnectionRefusedError():
            return "it is not running, or runs elsewhere"
        case PermissionError():
            return "not allowed to connect; be its user, or of its group"
        case Refused():
            return f"it says {error}"
        case OSError() | LivenessError():
            return str(error)
        case _:
            return f"a fault of this library, {error!r:.200}; please report it"

"""The links of a reader, which connects as a watcher, and again when a link ends.

A `WatcherLink` is one connection. It reads only when a frame is requested, and holds at
most one frame and one piece more. `Redial` makes one link after another, waits between its
attempts, and logs their results.
"""

import logging
import os
import random
import secrets
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import anyio
import anyio.abc

from liveness.client.link_state import advice
from liveness.client.reconnecting_link import (
    MAX_BACKOFF_S,
    MAX_BATCH,
    MAX_FRAME_BYTES,
    RECONNECT_S,
    RETRY_S,
    WELCOME_S,
    logger,
)
from liveness.client.sidecar_frames import (
    Welcome,
    parse_welcome,
    replaced_by,
    wrong_form,
)
from liveness.core.records import WATCHER
from liveness.core.wire.frames import PROTOCOL
from liveness.core.wire.framing import Frame, Reader, encode
from liveness.errors import Code, LivenessError, Refused, Replaced, WireError
from liveness.text import escaped

# The fatal errors after which the same hello may be accepted soon.
PASSING: Final = frozenset({Code.OVERLOADED, Code.INTERNAL, Code.TOO_SLOW})
# After a refusal that only an operator can end, the pause is 1 s, 2 s, 4 s and so on.
MAX_REFUSED_S: Final = 60.0

# Returns the seconds to wait, between the two given ones.
PauseBetween = Callable[[float, float], float]
ReportLine = Callable[[str], None]


class LinkLost(LivenessError):
    """A link ended. The next one may work."""


def random_name(what: str) -> str:
    """A name for a link that keeps no cursor. A link of the same name would replace it."""
    host = socket.gethostname()[:24]
    return f"{what}-{host}-{os.getpid()}-{secrets.token_hex(4)}"


def watcher_hello(name: str, scope: str, **options: object) -> dict[str, object]:
    """The options of a watcher's hello."""
    hello: dict[str, object] = {"protocol": PROTOCOL, "role": WATCHER, "name": name}
    return {**hello, "scope": scope, **options}


class WatcherLink:
    """One connection as a watcher. It checks the form of every frame that it returns."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._reader = Reader(max_frame_bytes=MAX_FRAME_BYTES, max_batch=MAX_BATCH)
        self._frames = deque[Frame]()
        self.welcome: Welcome

    async def say_hello(self, hello: dict[str, object]) -> None:
        """Send the first frame."""
        # A sidecar that refuses this link sends the reason before it closes: read that.
        with suppress(anyio.BrokenResourceError):
            await self._stream.send(encode(["hello", hello]))

    async def read_welcome(self) -> None:
        """Wait for the welcome.

        Raises:
            LinkLost: The link has ended.
            Refused: The sidecar has ended the link, with a reason.
            WireError: The peer is no sidecar.
        """
        while True:
            match await self.next_frame():
                case ("welcome", dict(options), *_) as frame:
                    try:
                        self.welcome = parse_welcome(options)
                    except (KeyError, TypeError, ValueError, OverflowError) as error:
                        raise wrong_form(frame) from error
                    return
                case ("welcome", *_) as frame:
                    raise wrong_form(frame)
                case _:
                    pass

    async def send(self, frame: list[Any]) -> None:
        """Send a frame. If the link has ended, `next_frame` will raise the error.

        If this is cancelled, a part of the frame may be written: close the link.
        """
        with suppress(anyio.BrokenResourceError):
            await self._stream.send(encode(frame))

    @property
    def has_frame(self) -> bool:
        """Whether a frame has arrived that `next_frame` has not returned."""
        return bool(self._frames)

    async def next_frame(self) -> Frame:
        """Return the next frame, which may be an error that is not fatal.

        If this is cancelled, no frame is lost.

        Raises:
            LinkLost, Refused, WireError: As `read_welcome`.
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
        match frame:
            case ("bye", {"reason": str(reason)}, *_):
                raise LinkLost(f"it says bye: {escaped(reason)}")
            case ("error", {"code": str(code), "message": str(message)}, *_):
                if code == Code.REPLACED:
                    raise replaced_by(
                        frame[1].get("pid"),
                        "by the name of this reader, and reads in its place; end one of "
                        "the two, or give each a name of its own",
                    )
                if frame[1].get("fatal", True):
                    raise Refused(escaped(code), escaped(message))
            case ("notices", tuple(), *_):
                pass
            case ("bye" | "error" | "notices", *_):
                raise wrong_form(frame)
            case _:
                pass  # of a later version; the protocol allows ignoring it
        return frame

    async def aclose(self) -> None:
        """Close the connection; it does not wait."""
        await anyio.aclose_forcefully(self._stream)


class Redial:
    """Makes links to one sidecar, one after the other.

    Args:
        path: The sidecar's socket.
        name: For the log.
        strict: Whether to raise errors that are otherwise logged and tried again: at the
            first attempt all, later only permanent refusals.
        report_line: Called with each line for a person, in place of the logger.
        pause_between: Chooses each pause.
    """

    def __init__(
        self,
        path: str,
        name: str,
        *,
        strict: bool = False,
        report_line: ReportLine | None = None,
        pause_between: PauseBetween = random.uniform,
    ) -> None:
        self.path = path
        self._name = name
        self._is_strict = strict
        self._report_line = report_line
        self._pause_between = pause_between
        self._pause_s = 0.0
        self._refusals = 0
        self._has_linked = False
        self._is_away_reported = False
        self._logged = ""

    async def open(self, hello: Callable[[], dict[str, object]]) -> WatcherLink:
        """Connect and say hello until a sidecar sends its welcome; return the link.

        Raises:
            Replaced: As `ended`; so are the others.
        """
        while True:
            await anyio.sleep(self._pause_s)
            try:
                link = await self._connect(hello())
            except (OSError, LivenessError) as error:
                self.ended(error)
            else:
                self._pause_s, self._refusals = 0.0, 0
                self._has_linked, self._is_away_reported = True, False
                return link

    async def _connect(self, hello: dict[str, object]) -> WatcherLink:
        link = WatcherLink(await anyio.connect_unix(self.path))
        try:
            await link.say_hello(hello)
            with anyio.move_on_after(WELCOME_S) as waiting:
                await link.read_welcome()
            if waiting.cancelled_caught:
                if self._is_strict and not self._has_linked:
                    raise LinkLost("it does not answer")
                # The link is kept: a hanging sidecar would read the hellos later, and
                # could take the older link for the newer one.
                self.say(
                    f"no welcome at {self.path} for {WELCOME_S:g} s; it hangs, or is no "
                    "sidecar. Still waiting"
                )
                await link.read_welcome()
        except BaseException:
            await link.aclose()
            raise
        return link

    def ended(self, error: Exception) -> None:
        """Note why a link has ended, or an attempt failed; log it, and choose a pause.

        Raises:
            Replaced: Another process has taken the name; both would replace each other
                for ever.
            OSError, LivenessError: *error*, if strict.
        """
        is_passing = not isinstance(error, Refused) or error.code in PASSING
        if isinstance(error, Replaced):
            self.say(
                f"another process reads as {self._name!r} now, and this one reads no more; "
                "give each process a name of its own",
                logging.ERROR,
            )
            raise error
        if self._is_strict and (not is_passing or isinstance(error, WireError)):
            raise error
        if self._is_strict and not self._has_linked:
            raise error
        between = RECONNECT_S
        if isinstance(error, OSError):
            between = RETRY_S
        elif not isinstance(error, LinkLost):
            most_s = MAX_BACKOFF_S if is_passing else MAX_REFUSED_S
            most_s = min(2.0 ** min(self._refusals, 10), most_s)
            # A refusal by the operator's settings does not end within milliseconds.
            between = (0.0 if is_passing else most_s / 2, most_s)
            self._refusals += 1
        self._pause_s = self._pause_between(*between)
        if not is_passing or isinstance(error, WireError):
            self.say(
                f"{self.path} refuses this reader, which goes on trying: {_why(error)}",
                logging.ERROR,
            )
        elif not self._is_away_reported:
            verb = "lost" if self._has_linked else "no link to"
            self.say(f"{verb} {self.path} ({_why(error)}): connecting again")
        self._is_away_reported = True

    def say(self, line: str, level: int = logging.WARNING) -> None:
        """Log *line*, but not twice in a row: there may be many attempts."""
        if line == self._logged:
            return
        self._logged = line
        if self._report_line is not None:
            self._report_line(line)
        else:
            logger.log(level, "%s: %s", self._name, line)


def _why(error: Exception) -> str:
    """Why there is no link, and what to do about it."""
    return f"it says {error}" if isinstance(error, Refused) else advice(error)

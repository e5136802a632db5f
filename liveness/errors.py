"""Every exception raised on purpose, and the codes of refusals.

A code is part of the wire contract (`proto/README.md`): it is never renamed, and never
gets another meaning. `NOT_FATAL` says which codes leave the link open.
"""

from enum import StrEnum


class LivenessError(Exception):
    """Base of everything this package raises on purpose.

    Its text is one line for a person: what is wrong, where, and what to do about it.
    """


class ConfigError(LivenessError):
    """Settings cannot be used. The operator has to fix them; nothing was started.

    `faults` has a line for each; the text has them all.
    """

    def __init__(self, *faults: str) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class StartError(LivenessError):
    """The sidecar cannot start: for instance, a socket, port or folder is not available."""


class StateError(LivenessError):
    """The state directory has files that this version cannot read or must not change."""


class ReportError(LivenessError, ValueError):
    """A gateway's report is impossible. Its author has to fix it; nothing was applied."""


class Code(StrEnum):
    """Why a frame, or a whole link, was refused."""

    BAD_MSGPACK = "bad-msgpack"
    TOO_LARGE = "too-large"
    TOO_DEEP = "too-deep"
    TOO_SLOW = "too-slow"
    NOT_HELLO = "not-hello"
    BAD_HELLO = "bad-hello"
    UNSUPPORTED_PROTOCOL = "unsupported-protocol"
    NOT_ALLOWED = "not-allowed"
    REPLACED = "replaced"
    OVERLOADED = "overloaded"
    UNKNOWN_FRAME = "unknown-frame"
    BAD_FRAME = "bad-frame"
    BAD_OPTION = "bad-option"
    BAD_UID = "bad-uid"
    TOO_MANY_TIMERS = "too-many-timers"
    TOO_MANY_USERS = "too-many-users"
    INTERNAL = "internal"


NOT_FATAL = frozenset(
    {
        Code.UNKNOWN_FRAME,
        Code.BAD_FRAME,
        Code.BAD_OPTION,
        Code.BAD_UID,
        Code.TOO_MANY_TIMERS,
        Code.TOO_MANY_USERS,
    }
)


class WireError(LivenessError):
    """The other side sent a frame, or bytes, that are not our protocol.

    After a fault of the stream (`core.wire.framing`), nothing later is read, and the link
    is closed after `code` was sent; after one of a frame, only if `code` is not in
    `NOT_FATAL`. `limit` is the setting that was exceeded, and `index` the place of the uid
    in the frame, if any.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        limit: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.limit, self.index = code, limit, index


class Refused(LivenessError):
    """The sidecar refused this gateway, and would do so again. An operator has to act.

    Comes out of a `watch` with `strict=True`. Of a gateway it is logged, and the library
    tries again until the sidecar accepts.

    `code` says why (`proto/README.md`, "Errors").
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


class Replaced(Refused):
    """Another process said hello with this gateway's name, and has it now.

    This one does not reconnect by itself: the two would replace each other for ever. Give
    each gateway a name of its own.

    Comes out of a `watch`. Of a gateway it is logged, and `Sidecar.resume` takes the name
    over again. `pid` is the other process, in the numbers
    of the sidecar's host; None if the sidecar does not know it.
    """

    def __init__(self, code: str, message: str, *, pid: int | None = None) -> None:
        super().__init__(code, message)
        self.pid = pid


class TaskFailed(LivenessError):
    """A task raises this if its timer's work failed.

    Its text is sent as the answer's message. If it is `final`, there is no retry.
    """

    def __init__(self, message: str, *, final: bool = True) -> None:
        super().__init__(message)
        self.final = final

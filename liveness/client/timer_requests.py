"""What a gateway says of its timers, kept until it is on the sidecar's disk.

A word is one of `after` (do this in so many seconds), `cancel` (do not), `done` and
`fail` (how a run went). Of each key, each ext and each run only the newest word is
kept, in the place of the newest: so a cancel by ext and the `after`s with that ext are
told in the order in which they were said, however often each was.

What was told and is not covered by a pong yet is kept in the same way, and told again
on the next link, an `after` with the seconds that are left by then. A timer that fired
in just that moment therefore fires once more: that, sooner than never. An `after` that
the sidecar has no room for is told again later.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeGuard

from liveness.core.frames import is_within
from liveness.core.framing import encode
from liveness.core.uids import MAX_UID_BYTES, is_text
from liveness.errors import ReportError

MIN_AFTER_S: Final = 0.1
MAX_AFTER_S: Final = 31_622_400  # 366 days
MAX_CONTENT_BYTES: Final = 4_096  # of a payload, and of an answer's message

# While the sidecar is away, words wait here: ten seconds of 10,000 timers and as many
# cancels a second, longer than a restart takes, in some 100 MB.
MOST_WORDS: Final = 200_000
# Timers that there was no room for are asked for again after so long, all together.
AGAIN_S: Final = 5.0
# As `reports.CHANGES_AT_ONCE`, and for the same reason.
WORDS_AT_ONCE: Final = 4_096

AFTER: Final = "after"
CANCEL: Final = "cancel"
DONE: Final = "done"
FAIL: Final = "fail"

KEY: Final = "key"
EXT: Final = "ext"
RUN: Final = "run"


class AfterRequest(NamedTuple):
    """A timer as it was asked for: due then, by the clock that `TimerRequests` is told."""

    key: str
    due: float
    options: dict[str, str]
    number: int  # of what was asked, in its order


class CancelRequest(NamedTuple):
    """A timer, or all with an ext, is not to be: as it is told."""

    frame: bytes
    number: int


Word: TypeAlias = AfterRequest | CancelRequest | bytes  # an answer is told as it stands
Words: TypeAlias = dict[tuple[str, str | int], Word]  # by what it is about


class TimerRequests:
    """The words about timers: those to be told, and those that no pong has covered."""

    def __init__(self) -> None:
        self.is_understood = True  # by the sidecar at hand, as far as is known
        self.has_spoken = False  # whether any timer was ever asked for
        self.unkept = 0  # answers that there was no room for; their runs come again
        self._untold: Words = {}
        self._told: Words = {}  # since the last ping
        self._pinged: Words = {}  # before it, and not covered by a pong yet
        self._refused: dict[
            str, AfterRequest
        ] = {}  # by key: those that there was no room for
        self._again_at: float | None = None  # when they are told again
        self._number = 0  # of the latest that was asked

    # --- what the gateway says ----------------------------------------------------

    def after(
        self, key: str, seconds: float, payload: str | None, ext: str | None, now: float
    ) -> None:
        """Ask for a timer; see `Sidecar.after`.

        Raises:
            ReportError: Something of it cannot be. Nothing was taken.
        """
        _check_name(KEY, key)
        if not is_within(seconds, MIN_AFTER_S, MAX_AFTER_S):
            raise ReportError(
                f"{seconds!r:.40} seconds for {key!r:.80}; it must be {MIN_AFTER_S} to "
                f"{MAX_AFTER_S}"
            )
        options = {}
        if payload is not None:
            if not is_content(payload):
                raise ReportError(
                    f"payload is {payload!r:.80}; it must be a string of at most "
                    f"{MAX_CONTENT_BYTES} bytes without U+0000"
                )
            options["payload"] = payload
        if ext is not None:
            _check_name(EXT, ext)
            options["ext"] = ext
        self._number += 1
        self._ask((KEY, key), AfterRequest(key, now + seconds, options, self._number))

    def cancel(self, key: str | None, ext: str | None) -> None:
        """Ask for a timer, or all with an ext, not to be; see `Sidecar.cancel`.

        Raises:
            ReportError: As `after`.
        """
        if (key is None) == (ext is None):
            raise ReportError("cancel takes a key or an ext: exactly one of both")
        what, name = (KEY, key) if key is not None else (EXT, ext or "")
        _check_name(what, name)
        self._number += 1
        frame = encode([CANCEL, {what: name}])
        self._ask((what, name), CancelRequest(frame, self._number))
        if what == EXT:
            self._refused = {
                key: asked
                for key, asked in self._refused.items()
                if asked.options.get(EXT) != ext
            }

    def done(self, key: str, seq: int, message: str | None) -> None:
        """Answer that the run of this record went well.

        Raises:
            ReportError: The message is no string.
        """
        text = None if message is None else _fitting(message)
        self._answer(seq, encode([DONE, key, text, {"seq": seq}]))

    def fail(self, key: str, seq: int, message: str, *, final: bool) -> None:
        """Answer that the run of this record went wrong; *final*: not to be tried again.

        Raises:
            ReportError: The message is no string.
        """
        options: dict[str, object] = {"seq": seq}
        if final:
            options["final"] = True
        self._answer(seq, encode([FAIL, key, _fitting(message), options]))

    def forget_answers(self) -> None:
        """Let go of all answers: they are about a log that is no more."""
        for words in (self._untold, self._told, self._pinged):
            for about in [about for about in words if about[0] == RUN]:
                del words[about]

    def _ask(self, about: tuple[str, str], word: Word) -> None:
        if not self.is_understood:
            raise ReportError(
                "the sidecar has no timers; it is older than this library: update it"
            )
        if not self._has_room(about):
            raise ReportError(
                f"{MOST_WORDS} words about timers wait for the sidecar's disk, and no "
                "more are kept; see whether it runs and can write"
            )
        self.has_spoken = True
        if about[0] == KEY:
            self._refused.pop(about[1], None)
        _put(self._untold, about, word)

    def _answer(self, seq: int, word: bytes) -> None:
        if self._has_room((RUN, seq)):
            _put(self._untold, (RUN, seq), word)
        else:
            self.unkept += 1

    def _has_room(self, about: tuple[str, str | int]) -> bool:
        kept = self.pending + self.unconfirmed
        return kept < MOST_WORDS or about in self._untold

    # --- what is told ---------------------------------------------------------------

    @property
    def has_words(self) -> bool:
        """Whether there is something to tell a sidecar that understands it."""
        return self.is_understood and bool(self._untold)

    @property
    def pending(self) -> int:
        """How many words wait to be told."""
        return len(self._untold) + len(self._refused)

    @property
    def refused(self) -> int:
        """Of these those that the sidecar had no room for when it was told."""
        return len(self._refused)

    @property
    def unconfirmed(self) -> int:
        """How many were told, and no pong has covered them."""
        return len(self._told) + len(self._pinged)

    def frames(self, now: float) -> Iterator[bytes]:
        """Give the first words that wait, encoded; they count as told from this call on."""
        self._ask_again(now)
        words = []
        if self.is_understood:
            for about in list(islice(self._untold, WORDS_AT_ONCE)):
                words.append(word := self._untold.pop(about))
                _put(self._told, about, word)
        return (_encoded(word, now) for word in words)

    def no_room(self, key: str) -> None:
        """Note that a timer was not taken, as there are too many; it is told again.

        Unless a newer word about it was said since, or about all with its ext.
        """
        about = (KEY, key)
        generations = (self._pinged, self._told, self._untold)
        told = next((words for words in generations if about in words), {})
        asked = told.get(about)
        if not isinstance(asked, AfterRequest) or told is self._untold:
            return
        del told[about]
        ext = asked.options.get(EXT)
        newer = [words.get(about) for words in generations]
        if ext is not None:
            newer += [words.get((EXT, ext)) for words in generations]
        if not any(
            isinstance(word, AfterRequest | CancelRequest)
            and word.number > asked.number
            for word in newer
        ):
            self._refused[key] = asked

    def _ask_again(self, now: float) -> None:
        """Have those that there was no room for told again, if it is time to."""
        if not self._refused:
            self._again_at = None
        elif self._again_at is None:
            self._again_at = now + AGAIN_S
        elif now >= self._again_at:
            self._again_at = None
            for key, asked in self._refused.items():
                _put(self._untold, (KEY, key), asked)
            self._refused = {}

    # --- what is known to have arrived, as in `reports` -----------------------------

    def pinged(self) -> None:
        """Note that a ping was written behind all that was told; one at a time."""
        self._pinged, self._told = self._told, {}

    def confirmed(self) -> None:
        """Note that the pong to that ping has come."""
        self._pinged = {}

    def lost(self) -> None:
        """Note that the link has ended: what no pong covered is to be told again."""
        words: Words = {(KEY, key): asked for key, asked in self._refused.items()}
        words |= self._pinged
        told, self._told, self._pinged, self._refused = self._told, {}, {}, {}
        for newer in (told, self._untold):
            for about, word in newer.items():
                _put(words, about, word)
        self._untold = words


def is_content(value: object) -> TypeGuard[str]:
    """Whether *value* may be a timer's payload."""
    if type(value) is not str or len(value) > MAX_CONTENT_BYTES or "\0" in value:
        return False
    try:
        return len(value.encode()) <= MAX_CONTENT_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair, which is no text
        return False


def _check_name(what: str, value: object) -> None:
    if not is_text(value, MAX_UID_BYTES):
        raise ReportError(
            f"{what} is {value!r:.80}; it must be a string of 1 to {MAX_UID_BYTES} bytes "
            "without control characters"
        )


def _fitting(message: object) -> str:
    """*message* as it may be told: it is for a person, who reads what there is of it."""
    if not isinstance(message, str):
        raise ReportError(f"message is {message!r:.80}; it must be a string")
    data = message.replace("\0", "\ufffd").encode(errors="replace")
    return data[:MAX_CONTENT_BYTES].decode(errors="ignore")


def _put(words: Words, about: tuple[str, str | int], word: Word) -> None:
    """Put a word in the last place, whichever place an older one had."""
    words.pop(about, None)
    words[about] = word


def _encoded(word: Word, now: float) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, CancelRequest):
        return word.frame
    left = min(max(word.due - now, MIN_AFTER_S), MAX_AFTER_S)
    frame = [AFTER, word.key, left]
    return encode([*frame, word.options] if word.options else frame)

"""The token of the TCP door: who has it, who signed in with it, who tries in vain.

The token is read from a file, and kept nowhere else. A program says it with each
request. A browser says it once and gets a cookie, which is a date and a signature of it
by a key that the token gives: so nothing is kept of who signed in, no cookie tells the
token, and a new token ends them all. All that is secret is compared in a time that does
not depend on where it differs.

Nothing here reads a clock: the time is told.
"""

import hmac
import os
import stat
from math import ceil
from pathlib import Path
from typing import Final

from liveness.errors import StartError

# 16 characters of those that `openssl rand -base64` writes are 96 bits: none is guessed.
LEAST_CHARACTERS: Final = 16
MOST_BYTES: Final = 4096
# A working day, so that one signs in once a day.
SIGNED_IN_S: Final = 12 * 3600
# Who has the token is let in whatever others try: this bounds what those cost, and what
# they have us say.
TRIES_PER_S: Final = 2.0
TRIES_AT_ONCE: Final = 5

_KEY_FOR: Final = b"liveness: the cookie of who signed in"


class Token:
    """The token, as it is asked about.

    Args:
        secret: ASCII that can be printed, without spaces.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode("ascii")
        self._key = hmac.digest(self._secret, _KEY_FOR, "sha256")

    def become(self, other: "Token") -> bool:
        """Be *other* from now on: whoever signed in with this one has to do so again.

        Returns:
            Whether that is another.
        """
        is_new = not hmac.compare_digest(self._secret, other._secret)
        self._secret, self._key = other._secret, other._key
        return is_new

    def is_it(self, text: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(text.encode(), self._secret)

    def is_said_by(self, authorization: str) -> bool:
        """Whether the header of this name says it: `Bearer TOKEN`."""
        scheme, _, text = authorization.partition(" ")
        return scheme.lower() == "bearer" and self.is_it(text.strip())

    def sign(self, now_s: float) -> str:
        """The cookie of one who signs in, good for `SIGNED_IN_S`.

        Args:
            now_s: Unix seconds.
        """
        until = str(int(now_s) + SIGNED_IN_S)
        return f"{until}.{self._signature(until)}"

    def is_signed(self, cookie: str, now_s: float) -> bool:
        """Whether a cookie is one of ours, and still good at *now_s*, Unix seconds."""
        until, _, signature = cookie.partition(".")
        ours = self._signature(until)
        if not hmac.compare_digest(signature.encode(), ours.encode()):
            return False
        return now_s < int(until)  # ours, so it is a number

    def _signature(self, until: str) -> str:
        return hmac.digest(self._key, until.encode(), "sha256").hex()


class Tries:
    """How often all together may be wrong: so often at once, and then so often a second."""

    def __init__(self) -> None:
        self._left = float(TRIES_AT_ONCE)
        self._at = 0.0

    def fail(self, now: float) -> int:
        """Take one more that was wrong.

        Args:
            now: Seconds of any clock that does not go back.
        Returns:
            0, or in how many whole seconds there is room for it.
        """
        self._left += (now - self._at) * TRIES_PER_S
        self._left = min(self._left, float(TRIES_AT_ONCE))
        self._at = now
        if self._left < 1:
            return ceil((1 - self._left) / TRIES_PER_S)
        self._left -= 1
        return 0


def read_token(path: Path | None) -> Token | None:
    """Read the token that a file holds; without a file there is none.

    Raises:
        StartError: The file cannot be read, others can read it, or it holds no token.
    """
    if path is None:
        return None
    try:
        data, mode = _read(path)
    except OSError as error:
        raise _refused(
            path, f"cannot be read ({error.strerror}); correct the path or its mode"
        ) from None
    if not stat.S_ISREG(mode):
        raise _refused(path, "is no file; name one that holds the token")
    if mode & 0o007:
        raise _refused(path, "is open to others than owner and group; chmod o= it")
    if len(data) > MOST_BYTES:
        raise _refused(path, f"has more than {MOST_BYTES} bytes; it must be the token")
    secret = data.decode("latin-1").strip()
    if len(secret) < LEAST_CHARACTERS:
        told = f"has {len(secret)} characters; a token has {LEAST_CHARACTERS} or more"
        raise _refused(path, f"{told} (openssl rand -base64 24)")
    if not all("!" <= character <= "~" for character in secret):
        raise _refused(
            path, "has characters other than printable ASCII; a token has no others"
        )
    return Token(secret)


def _read(path: Path) -> tuple[bytes, int]:
    """A little more than a token may have, and the mode, of one and the same file."""
    # Whatever it is that was named, nobody is waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        data = os.read(descriptor, MOST_BYTES + 1) if stat.S_ISREG(mode) else b""
    finally:
        os.close(descriptor)
    return data, mode


def _refused(path: Path, why: str) -> StartError:
    return StartError(f"http.token_file: {path} {why}")

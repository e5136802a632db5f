"""Checks of single values: what may name a user or a connection, texts and numbers."""

import re
from typing import Final, TypeGuard

from liveness.core.records import Uid, identity

MAX_UID_BYTES: Final = 255
MAX_NAME_BYTES: Final = 64
MIN_TIMEOUT_S: Final = 1  # of a user's silence
MAX_TIMEOUT_S: Final = 86_400
MAX_INTEGER: Final = 2**63 - 1

_CONTROL = re.compile("[\x00-\x1f\x7f]")


def is_natural(value: object) -> TypeGuard[int]:
    """Whether *value* is an integer, and no boolean, from 0 to 2^63-1."""
    return type(value) is int and 0 <= value <= MAX_INTEGER


def is_within(value: object, low: float, high: float) -> TypeGuard[float]:
    """Whether *value* is a finite number (no boolean) from *low* to *high*."""
    if type(value) is not int and type(value) is not float:
        return False
    # NaN compares false with everything. `high` may be infinite, *value* may not.
    return low <= value <= high and value != float("inf")


def is_text(value: object, longest: int) -> TypeGuard[str]:
    """Whether *value* is a string of 1 to *longest* bytes without control characters.

    Control characters are U+0000 to U+001F and U+007F.
    """
    if type(value) is not str or not value or len(value) > longest:
        return False
    if value.isascii():
        # For ASCII this is the same as no control character, and much faster.
        return value.isprintable()
    try:
        return not _CONTROL.search(value) and len(value.encode()) <= longest
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def names_of(uid: Uid) -> tuple[Uid, ...]:
    """All names of a user: text and, if that is the decimal of an integer, the integer."""
    text = identity(uid)
    if text.isascii() and text.isdecimal() and len(text) < 20:
        number = int(text)
        if number <= MAX_INTEGER and f"{number}" == text:
            return text, number
    return (text,)


def is_uid(value: object) -> TypeGuard[Uid]:
    return is_text(value, MAX_UID_BYTES) or is_natural(value)


def bad_uid_text(uid: object) -> str:
    return (
        f"{uid!r:.80} is no uid: a string of 1 to 255 bytes without control "
        "characters, or an integer from 0 to 2^63-1"
    )

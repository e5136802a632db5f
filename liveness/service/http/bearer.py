"""The token of the TCP listener: a request has it as `Authorization: Bearer TOKEN`.

The token is read from a file and stored nowhere else. The pages for scrapers and
supervisors need none.
"""

import hmac
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio
from starlette.requests import Request

from liveness.config.secret_file import read_secret
from liveness.errors import StartError
from liveness.metrics.counts import HttpRefusal
from liveness.service.common.logs import LogThrottle
from liveness.service.http.api import ApiError
from liveness.service.http.middleware import STILL_ALLOWED

OPEN: Final = frozenset({"/metrics", "/healthz", "/readyz"})
LOG_S: Final = 10.0
# 16 characters as `openssl rand -base64` writes them are 96 bits: too many to guess.
MIN_CHARACTERS: Final = 16

_log = structlog.get_logger("http")


class Token:
    """The token: printable ASCII without spaces. It is compared in constant time."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode("ascii")
        self._log_throttled = LogThrottle(LOG_S, clock=trio.current_time)

    def replace_with(self, other: "Token") -> bool:
        """Take over the secret of *other*; return whether it is another one."""
        is_new = not hmac.compare_digest(self._secret, other._secret)
        self._secret = other._secret
        return is_new

    def matches(self, authorizations: Sequence[str]) -> bool:
        if len(authorizations) != 1:
            return False
        scheme, _, text = authorizations[0].partition(" ")
        is_same = hmac.compare_digest(text.strip().encode(), self._secret)
        return scheme.lower() == "bearer" and is_same

    def check(self, request: Request) -> None:
        """Refuse a request without the token, unless its page is open to all."""
        if request.scope["path"] in OPEN:
            return
        given = request.headers.getlist("authorization")
        if self.matches(given):
            request.scope[STILL_ALLOWED] = partial(self.matches, given)
            return
        if given:
            client = request.client.host if request.client else None
            message = "a wrong token was refused"
            self._log_throttled(_log.warning, message, key="token", client=client)
            error = "that is not the token; it is in the file of http.token_file"
        else:
            error = (
                "this page needs the token that is in the file of http.token_file: send "
                '"Authorization: Bearer TOKEN"; docs/live-page.md says how a browser gets in'
            )
        headers = {"www-authenticate": "Bearer"}
        raise ApiError(401, error, HttpRefusal.TOKEN, headers)


def read_token(path: Path | None) -> Token | None:
    """Read the token from a file; None without a path.

    Raises:
        StartError: The file cannot be read, is open to other users, or has no valid token.
    """
    if path is None:
        return None
    secret = read_secret("http.token_file", path, "token").decode("latin-1").strip()
    why = ""
    if len(secret) < MIN_CHARACTERS:
        why = f"has {len(secret)} characters; a token has {MIN_CHARACTERS} or more "
        why += "(openssl rand -base64 24)"
    elif not all("!" <= character <= "~" for character in secret):
        why = "has characters other than printable ASCII; a token has no others"
    if why:
        raise StartError(f"http.token_file: {path} {why}")
    return Token(secret)

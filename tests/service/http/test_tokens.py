"""The token: its file, the requests that have it, and the pages that need it."""

import os
from pathlib import Path

import pytest
from starlette.responses import Response
from structlog.testing import capture_logs
from trio.testing import MockClock

from liveness.config.secret_file import MAX_BYTES
from liveness.errors import StartError
from liveness.metrics.counts import HttpRefusal
from liveness.service.http.bearer import MIN_CHARACTERS, Token, read_token
from liveness.service.http.middleware import Middleware
from tests.service.http.asgi import Answer, ask

WORDS = "correct-horse/battery+staple=="
WRONG = "Bearer another-token-of-the-same-length"


@pytest.fixture
def token() -> Token:
    return Token(WORDS)


def written(folder: Path, text: bytes, mode: int = 0o640) -> Path:
    file = folder / "token"
    file.write_bytes(text)
    file.chmod(mode)
    return file


def refused(path: Path) -> str:
    with pytest.raises(StartError) as caught:
        read_token(path)
    told = str(caught.value)
    assert told.startswith(f"http.token_file: {path} ")
    assert "\n" not in told
    return told


# --- the file -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o400, 0o660])
@pytest.mark.parametrize("text", [WORDS, f"\ufeff \t{WORDS}\r\n\r\n"])
def test_a_token_is_read_without_the_space_around_it(
    tmp_path: Path, text: str, mode: int
) -> None:
    (tmp_path / "link").symlink_to(written(tmp_path, text.encode(), mode))
    for path in (tmp_path / "token", tmp_path / "link"):
        token = read_token(path)
        assert token is not None
        assert token.matches([f"Bearer {WORDS}"])


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    told = refused(written(tmp_path, WORDS.encode(), mode))
    assert "is open to users other than its owner and group; run chmod o= on it" in told
    assert WORDS not in told


@pytest.mark.parametrize("size", [MIN_CHARACTERS, MAX_BYTES])
def test_a_file_at_the_bounds_is_read(tmp_path: Path, size: int) -> None:
    assert read_token(written(tmp_path, b"x" * size)) is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"\n", "has 0 characters"),
        (b"x" * (MIN_CHARACTERS - 1), "has 15 characters; a token has 16 or more"),
        (b"x" * (MAX_BYTES + 1), "more than 4096 bytes"),
        *((b"x" * 16 + odd + b"x", "other than printable") for odd in (b" ", b"\xe9")),
    ],
    ids=lambda value: ascii(value)[-24:],
)
def test_a_file_that_holds_no_token_is_refused(
    tmp_path: Path, text: bytes, why: str
) -> None:
    told = refused(written(tmp_path, text))
    assert why in told
    assert WORDS not in told


def test_what_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file" in refused(tmp_path / "absent")
    assert "is not a regular file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)  # and nobody is waited for
    assert "is not a regular file" in refused(tmp_path / "pipe")


# --- who has it -----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_a_header_with_the_token_is_accepted(token: Token, scheme: str) -> None:
    assert token.matches([f"{scheme} {WORDS}"])
    assert token.matches([f"{scheme}  {WORDS} "])


@pytest.mark.parametrize(
    "said",
    [
        "Bearer",
        WORDS,
        f"Basic {WORDS}",
        f"Bearer {WORDS[:-1]}",
        pytest.param(f"Bearer x{WORDS}", id="another token"),
        f"Bearer {WORDS} {WORDS}",
        "Bearer \xe9",
    ],
)
def test_a_header_with_anything_else_is_refused(token: Token, said: str) -> None:
    assert not token.matches([said])


def test_a_token_does_not_show_itself(token: Token) -> None:
    for shown in (repr(token), str(token)):
        assert WORDS not in shown


# --- pages ----------------------------------------------------------------------------


class Door:
    """A page behind the token."""

    def __init__(self, token: Token) -> None:
        self.refused: list[HttpRefusal] = []
        self._app = Middleware(
            Response("in"), [token.check], self.refused.append, max_body_bytes=65_536
        )

    async def get(self, path: str, *authorizations: str) -> Answer:
        headers = [("authorization", words) for words in authorizations]
        return await ask(self._app, "GET", path, headers=headers)


@pytest.fixture
def door(token: Token) -> Door:
    return Door(token)


# All but the first only look open.
@pytest.mark.parametrize("path", ["/", "/metrics/../", "/healthz/", "//metrics"])
async def test_without_the_token_nothing_is_shown_and_it_is_said_what_to_do(
    door: Door, path: str
) -> None:
    answer = await door.get(path)
    assert (answer.status, door.refused) == (401, [HttpRefusal.TOKEN])
    assert answer.headers["www-authenticate"] == "Bearer"
    assert 'send "Authorization: Bearer TOKEN"; docs/live-page.md says' in answer.error


async def test_two_tokens_are_none(door: Door) -> None:
    said = f"Bearer {WORDS}"
    assert (await door.get("/", said)).status == 200
    assert (await door.get("/", said, said)).status == 401


async def test_wrong_tokens_are_logged_rarely_and_never_shown(
    door: Door, mock_clock: MockClock
) -> None:
    with capture_logs() as lines:
        for _ in range(50):
            answer = await door.get("/", WRONG)
            assert (answer.status, "is not the token" in answer.error) == (401, True)
    assert [line["event"] for line in lines] == ["a wrong token was refused"]
    assert lines[0]["client"] == "192.0.2.1"
    assert "another-token" not in str(lines)

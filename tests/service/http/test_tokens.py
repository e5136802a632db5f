"""The token: its file, the requests that have it, and the limit of wrong ones."""

import os
from pathlib import Path

import pytest

from liveness.config.secret_file import MAX_BYTES
from liveness.errors import StartError
from liveness.service.http.sign_in import (
    MIN_CHARACTERS,
    SIGNED_IN_S,
    TRIES_AT_ONCE,
    TRIES_PER_S,
    Token,
    WrongTokenLimit,
    read_token,
)

WORDS = "correct-horse/battery+staple=="


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


def test_without_a_file_there_is_no_token() -> None:
    assert read_token(None) is None


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o660, 0o770])
@pytest.mark.parametrize(
    "text",
    [WORDS, f"{WORDS}\n", f" \t{WORDS}\r\n\r\n", "!" * 15 + "~", f"\ufeff{WORDS}\n"],
)
def test_a_token_is_read_without_the_space_around_it(
    tmp_path: Path, text: str, mode: int
) -> None:
    (tmp_path / "link").symlink_to(written(tmp_path, text.encode(), mode))
    for path in (tmp_path / "token", tmp_path / "link"):
        token = read_token(path)
        assert token is not None
        assert token.matches(text.strip("\ufeff \t\r\n"))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601])
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
        (b"", "has 0 characters"),
        (b"\n", "has 0 characters"),
        (b" " * 100, "has 0 characters"),
        (b"x" * (MIN_CHARACTERS - 1), "has 15 characters; a token has 16 or more"),
        (b"x" * (MAX_BYTES + 1), "more than 4096 bytes"),
        *(
            (WORDS.encode() + odd + WORDS.encode(), "other than printable ASCII")
            for odd in (b" ", b"\t", b"\n", b"\0", b"\x7f", b"\xe9", b"\xff")
        ),
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
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "is not a regular file" in refused(
        tmp_path / "pipe"
    )  # and nobody is waited for


# --- who has it -----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_header_with_the_token_is_accepted(token: Token, scheme: str) -> None:
    assert token.matches_header(f"{scheme} {WORDS}")
    assert token.matches_header(f"{scheme}  {WORDS} ")


@pytest.mark.parametrize(
    "said",
    [
        "",
        "Bearer",
        "Bearer ",
        WORDS,
        f"Basic {WORDS}",
        f"Bearer {WORDS[:-1]}",
        f"Bearer {WORDS}x",
        f"Bearer x{WORDS}",
        f"Bearer {WORDS.upper()}",
        f"Bearer {WORDS} {WORDS}",
        "Bearer \xe9",
    ],
)
def test_a_header_with_anything_else_is_refused(token: Token, said: str) -> None:
    assert not token.matches_header(said)


def test_a_token_does_not_show_itself(token: Token) -> None:
    for shown in (repr(token), str(token), token.sign(0)):
        assert WORDS not in shown


# --- cookies --------------------------------------------------------------------------


def test_a_cookie_is_good_for_its_time_and_not_a_second_longer(token: Token) -> None:
    cookie = token.sign(1_000.7)
    assert token.is_valid_cookie(cookie, 1_000.7)
    assert token.is_valid_cookie(cookie, 1_000 + SIGNED_IN_S - 0.1)
    assert not token.is_valid_cookie(cookie, 1_000 + SIGNED_IN_S)


def test_a_new_token_ends_the_cookies_of_the_old_one(token: Token) -> None:
    assert not Token(WORDS + "2").is_valid_cookie(token.sign(0), 0)
    assert Token(WORDS).is_valid_cookie(token.sign(0), 0)  # as after a restart


@pytest.mark.parametrize(
    "forged",
    [
        "",
        ".",
        "9999999999",
        "9999999999.",
        "x.y",
        "{until}",
        "{until}.",
        "{until}.{signature}x",
        "{until}0.{signature}",
        " {until}.{signature}",
        "{until}..{signature}",
        "{signature}.{until}",
        "{until}.\xe9",
    ],
)
def test_what_we_have_not_signed_is_no_cookie(token: Token, forged: str) -> None:
    until, signature = token.sign(0).split(".")
    forged = forged.format(until=until, signature=signature)
    assert not token.is_valid_cookie(forged, 0)


# --- tries ----------------------------------------------------------------------------


def test_so_many_may_be_wrong_at_once_and_then_so_many_a_second() -> None:
    tries = WrongTokenLimit()
    assert [tries.fail(100.0) for _ in range(TRIES_AT_ONCE)] == [0] * TRIES_AT_ONCE
    assert tries.fail(100.0) == 1
    assert tries.fail(100.0 + 0.9 / TRIES_PER_S) == 1
    assert tries.fail(100.0 + 1 / TRIES_PER_S) == 0
    assert tries.fail(100.0 + 1 / TRIES_PER_S) == 1


def test_refused_tries_do_not_lengthen_the_wait() -> None:
    tries = WrongTokenLimit()
    for _ in range(1_000):
        tries.fail(0.0)
    assert tries.fail(1.0) == 0


def test_a_long_time_without_wrong_tries_allows_no_more_at_once() -> None:
    tries = WrongTokenLimit()
    waits = [tries.fail(1e9) for _ in range(TRIES_AT_ONCE + 1)]
    assert waits == [0] * TRIES_AT_ONCE + [1]

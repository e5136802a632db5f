"""The token: where it is read, who has it, and how often one may be wrong."""

import os
from pathlib import Path

import pytest

from liveness.errors import StartError
from liveness.service.tokens import (
    LEAST_CHARACTERS,
    MOST_BYTES,
    SIGNED_IN_S,
    TRIES_AT_ONCE,
    TRIES_PER_S,
    Token,
    Tries,
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
    "text", [WORDS, f"{WORDS}\n", f" \t{WORDS}\r\n\r\n", "!" * 15 + "~"]
)
def test_a_token_is_read_without_what_surrounds_it(
    tmp_path: Path, text: str, mode: int
) -> None:
    token = read_token(written(tmp_path, text.encode(), mode))
    assert token is not None
    assert token.is_it(text.strip())


def test_a_token_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(written(tmp_path, WORDS.encode()))
    token = read_token(tmp_path / "link")
    assert token is not None
    assert token.is_it(WORDS)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    told = refused(written(tmp_path, WORDS.encode(), mode))
    assert "is open to others than owner and group; chmod o= it" in told
    assert WORDS not in told


def test_a_token_of_the_least_length_is_one_and_a_character_less_is_none(
    tmp_path: Path,
) -> None:
    assert read_token(written(tmp_path, b"x" * LEAST_CHARACTERS)) is not None
    told = refused(written(tmp_path, b"x" * (LEAST_CHARACTERS - 1)))
    assert "has 15 characters; a token has 16 or more" in told


@pytest.mark.parametrize("text", [b"", b"\n", b" " * 100])
def test_an_empty_file_is_refused(tmp_path: Path, text: bytes) -> None:
    assert "has 0 characters" in refused(written(tmp_path, text))


def test_a_file_of_the_most_bytes_is_read_and_one_more_is_refused(
    tmp_path: Path,
) -> None:
    assert read_token(written(tmp_path, b"x" * MOST_BYTES)) is not None
    assert "more than 4096 bytes" in refused(written(tmp_path, b"x" * (MOST_BYTES + 1)))


@pytest.mark.parametrize("odd", [b" ", b"\t", b"\n", b"\0", b"\x7f", b"\xe9", b"\xff"])
def test_what_no_header_can_say_is_refused(tmp_path: Path, odd: bytes) -> None:
    told = refused(written(tmp_path, WORDS.encode() + odd + WORDS.encode()))
    assert "other than printable ASCII" in told
    assert WORDS not in told


def test_what_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file" in refused(tmp_path / "absent")
    assert "is no file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "is no file" in refused(tmp_path / "pipe")  # and nobody is waited for


# --- who has it -----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_who_says_the_token_has_it(token: Token, scheme: str) -> None:
    assert token.is_said_by(f"{scheme} {WORDS}")
    assert token.is_said_by(f"{scheme}  {WORDS} ")


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
def test_who_says_anything_else_has_not(token: Token, said: str) -> None:
    assert not token.is_said_by(said)


def test_a_token_does_not_show_itself(token: Token) -> None:
    assert WORDS not in repr(token)
    assert WORDS not in str(token)


# --- cookies --------------------------------------------------------------------------


def test_a_cookie_is_good_for_its_time_and_not_a_second_longer(token: Token) -> None:
    cookie = token.sign(1_000.7)
    assert token.is_signed(cookie, 1_000.7)
    assert token.is_signed(cookie, 1_000 + SIGNED_IN_S - 0.1)
    assert not token.is_signed(cookie, 1_000 + SIGNED_IN_S)


def test_a_cookie_does_not_hold_the_token(token: Token) -> None:
    assert WORDS not in token.sign(0)


def test_a_new_token_ends_the_cookies_of_the_old_one(token: Token) -> None:
    assert not Token(WORDS + "2").is_signed(token.sign(0), 0)
    assert Token(WORDS).is_signed(token.sign(0), 0)  # as after a restart


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
    assert not token.is_signed(forged, 0)


# --- tries ----------------------------------------------------------------------------


def test_so_many_may_be_wrong_at_once_and_then_so_many_a_second() -> None:
    tries = Tries()
    assert [tries.fail(100.0) for _ in range(TRIES_AT_ONCE)] == [0] * TRIES_AT_ONCE
    assert tries.fail(100.0) == 1
    assert tries.fail(100.0 + 0.9 / TRIES_PER_S) == 1
    assert tries.fail(100.0 + 1 / TRIES_PER_S) == 0
    assert tries.fail(100.0 + 1 / TRIES_PER_S) == 1


def test_who_was_refused_does_not_wait_the_longer_for_it() -> None:
    tries = Tries()
    for _ in range(1_000):
        tries.fail(0.0)
    assert tries.fail(1.0) == 0


def test_however_long_nobody_was_wrong_no_more_may_be_at_once() -> None:
    tries = Tries()
    told = [tries.fail(1e9) for _ in range(TRIES_AT_ONCE + 1)]
    assert told == [0] * TRIES_AT_ONCE + [1]

"""The clocks file: clocks are kept exactly, and used once or not at all."""

import os
import stat
import zlib
from array import array
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import structlog

from liveness.core.records import EVENTS
from liveness.core.wheel.restart import Clocks
from liveness.core.wire.framing import decode, encode
from liveness.errors import StateError
from liveness.service.storage import clocks_file

STOPPED_MS = 1_000_000
INF, NAN = float("inf"), float("nan")

Clock = tuple[int, float, float, float, int]


def clocks_of(sessions: Sequence[int]) -> Clocks:
    """Clocks that all differ: of silences of 100, 99, … seconds."""
    n = range(len(sessions))
    return Clocks(
        sessions=array("q", sessions),
        timeouts=array("d", (1.5 + i for i in n)),
        remaining=array("d", (0.25 * i for i in n)),
        silences=array("d", (100.0 - i for i in n)),
        events=array("b", (i % 4 for i in n)),
    )


def write(folder: Path, sessions: Sequence[int]) -> Path:
    clocks = clocks_of(sessions)
    clocks_file.write(folder, log="abc", seq=7, at_ms=STOPPED_MS, clocks=clocks)
    return folder / clocks_file.NAME


def take(
    folder: Path, *, log: str = "abc", seq: int = 7, at_ms: int = STOPPED_MS
) -> list[Clock]:
    """The whole content of the file; silences include the time since the stop."""
    with clocks_file.taken(folder, logs={log}, seq=seq, at_ms=at_ms) as clocks:
        pass
    silences = array("d", (silence + clocks.away for silence in clocks.silences))
    *columns, _ = clocks._replace(silences=silences)
    return [*zip(*columns, strict=True)]


def test_every_user_is_restored_once_in_order_with_the_same_clock(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, range(2**62, 2**62 + 50))
    assert take(tmp_path) == [
        (2**62 + i, 1.5 + i, 0.25 * i, 100.0 - i, i % 4) for i in range(50)
    ]
    assert not path.exists()
    assert take(tmp_path) == []


@pytest.mark.parametrize(
    ("at_ms", "expected"), [(STOPPED_MS + 2_500, 102.5), (0, 100.0)]
)
def test_the_time_of_the_stop_is_silence_but_not_waiting_and_is_never_negative(
    tmp_path: Path, at_ms: int, expected: float
) -> None:
    write(tmp_path, [1])
    ((_, _, remaining, silence, _),) = take(tmp_path, at_ms=at_ms)
    assert (remaining, silence) == (0.0, expected)


def test_the_file_stays_if_the_start_fails(tmp_path: Path) -> None:
    path = write(tmp_path, [1])
    with (
        pytest.raises(StateError),
        clocks_file.taken(tmp_path, logs={"abc"}, seq=7, at_ms=STOPPED_MS),
    ):
        raise StateError("the start fails")
    assert path.exists()
    assert take(tmp_path) != []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_the_file_is_the_owners_alone_even_if_it_replaces_one_open_to_all(
    tmp_path: Path, umask: int
) -> None:
    for name in (clocks_file.NAME, clocks_file.NEW):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o666)
    before = os.umask(umask)
    try:
        path = write(tmp_path, [1])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [clocks_file.NAME]


@pytest.mark.parametrize(("log", "seq"), [("abd", 7), ("abc", 6), ("abc", 8)])
def test_a_file_of_another_log_or_seq_is_removed_unused(
    tmp_path: Path, log: str, seq: int
) -> None:
    path = write(tmp_path, [1])
    with structlog.testing.capture_logs() as said:
        assert take(tmp_path, log=log, seq=seq) == []
    assert [line["error"] for line in said] == ["it belongs to another log or seq"]
    assert not path.exists()


def test_a_file_of_another_version_gives_fresh_timeouts(tmp_path: Path) -> None:
    path = write(tmp_path, [1])
    head, body, _ = decode(path.read_bytes())
    version, *rest = decode(head)
    head = encode([version + 1, *rest])
    path.write_bytes(encode([head, body, zlib.crc32(head + body)]))
    with structlog.testing.capture_logs() as said:
        assert take(tmp_path) == []
    (line,) = said
    assert line["error"] == "it is damaged or of another version"


def test_a_file_with_a_wrong_bit_gives_fresh_timeouts(tmp_path: Path) -> None:
    path = write(tmp_path, [5, 7])
    whole = path.read_bytes()
    for place, bit in product(range(len(whole)), range(8)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        with structlog.testing.capture_logs() as said:
            assert take(tmp_path) == [], (place, bit)
        assert len(said) == 1
        assert not path.exists()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[("timeouts", value) for value in (-1.0, 86_401.0, INF, NAN)],
        *[("remaining", value) for value in (-0.1, 2e5, INF, -INF, NAN)],
        *[("silences", value) for value in (1e300, -1e300, INF, -INF, NAN)],
        *[("events", value) for value in (-1, len(EVENTS), 127, -128)],
    ],
)
def test_a_file_with_values_that_no_stop_writes_gives_fresh_timeouts(
    tmp_path: Path, column: str, value: float
) -> None:
    clocks = clocks_of([5, 7])
    getattr(clocks, column)[1] = value
    is_refused(tmp_path, clocks, "its columns hold values that no stop writes")


def test_a_file_whose_columns_differ_in_length_gives_fresh_timeouts(
    tmp_path: Path,
) -> None:
    clocks = clocks_of([5, 7])
    clocks.silences.pop()
    is_refused(tmp_path, clocks, "its columns are of different lengths")


def is_refused(folder: Path, clocks: Clocks, error: str) -> None:
    """Check that a file with a right checksum is not used for a start."""
    clocks_file.write(folder, log="abc", seq=7, at_ms=STOPPED_MS, clocks=clocks)
    with structlog.testing.capture_logs() as said:
        assert take(folder) == []
    assert [line["error"] for line in said] == [error]


# --- links and pipes in its place --------------------------------------------------------


def test_clocks_are_not_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("stopped.new", "stopped"):
        (tmp_path / name).symlink_to(precious)
    written = write(tmp_path, []).lstat()
    assert precious.read_text() == "precious"
    assert stat.S_ISREG(written.st_mode)
    assert stat.S_IMODE(written.st_mode) == 0o600
    assert clocks_file.stopped_at(tmp_path, log="abc", seq=7) == STOPPED_MS


def test_clocks_are_not_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = write(tmp_path / "real", [1])
    (tmp_path / "stopped").symlink_to(real)
    with pytest.raises(StateError, match=r"stopped cannot be read .*symbolic links"):
        take(tmp_path)
    assert real.exists()


def test_a_pipe_in_the_place_of_the_clocks_holds_up_no_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stopped")
    assert take(tmp_path) == []

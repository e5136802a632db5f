"""The compiled modules under AddressSanitizer and UBSan: the same tests, another build.

A copy is compiled with both, and the tests of the wheel and of the reader run in it. The
gate runs those that hold the two implementations to each other, and the fuzzer's corpus.
The sanitizers' libraries come with gcc; they have to be in the process before Python is.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.needs import require
from tests.helpers.tree import ROOT

CFLAGS: Final = (
    "-fsanitize=address,undefined -fno-sanitize-recover=undefined "
    "-fno-omit-frame-pointer -O0 -g1"  # compiled in a third of the time of -O1
)
ENVIRONMENT: Final = {
    "CFLAGS": CFLAGS,
    # The interpreter frees little of its own at its end, by design.
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # Its own allocator would hide who strays from one small block into the next.
    "PYTHONMALLOC": "malloc",
}
# The tests, and then what was in the process that ran them.
DRIVER: Final = """
import pathlib, sys
import pytest
code = pytest.main(sys.argv[1:])
print(pathlib.Path("/proc/self/maps").read_text())
sys.exit(code)
"""
TABLE: Final = "liveness/core/wheel/_table.pyx"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


def build(copy: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    command.append(f"--parallel={os.cpu_count()}")
    done = subprocess.run(
        command,
        cwd=copy,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def run(
    copy: Path, *files: str, only: str, marked: str = "not slow"
) -> subprocess.CompletedProcess[str]:
    """Run tests there; a sanitizer ends the process at the first fault."""
    libraries = [
        subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    tests = [str(next(copy.glob(f"tests/**/test_{name}.py"))) for name in files]
    options = ["-q", "-m", marked, "-k", only, "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-c", DRIVER, *options, "--capture=sys", *tests],
        cwd=copy,
        env=os.environ | ENVIRONMENT | {"LD_PRELOAD": " ".join(libraries)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1_500,
        check=False,
    )


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, to be compiled with the sanitizers."""
    require("gcc")
    copy = tmp_path_factory.mktemp("sanitized") / "copy"
    ignored = shutil.ignore_patterns(".*", "build", "*.so", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored)
    return copy


@pytest.mark.parametrize(
    ("files", "only", "marked"),
    [
        (
            ("differential", "corpus"),
            "not reference and not begins and not by_hand",
            "not slow",
        ),
        pytest.param(
            ("crowds", "wheel", "framing", "record_batch", "restart"),
            "not reference",
            "not slow",
            marks=pytest.mark.slow,
        ),
        pytest.param(("crowds",), "ten_million", "slow", marks=pytest.mark.slow),
    ],
    ids=["as the reference", "the other tests", "ten million operations"],
)
def test_the_compiled_parts_touch_no_memory_but_their_own(
    sanitized: Path, files: tuple[str, ...], only: str, marked: str
) -> None:
    build(sanitized)
    done = run(sanitized, *files, only=only, marked=marked)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "Sanitizer" not in done.stdout
    assert "runtime error" not in done.stdout
    # And they were at work: in the process, and in the code that it ran.
    compiled = [*sanitized.glob("liveness/core/*/*.so")]
    assert len(compiled) == len([*sanitized.glob("liveness/core/*/*.pyx")])
    for name in ("/libasan.so", "/libubsan.so", *map(str, compiled)):
        assert name in done.stdout
    for code in compiled:
        assert b"__asan_report_load8" in code.read_bytes()
        assert b"__ubsan_handle_" in code.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        (
            "pages(CHUNK * sizeof(Cell))",
            "pages((CHUNK - 1) * sizeof(Cell))",
            "AddressSanitizer: heap-buffer-overflow",
        ),
        (
            "if last <= (self.chunks - 2) * CHUNK:",
            "if last <= (self.chunks - 2) << CHUNK_BITS:",
            "runtime error: left shift of negative value",
        ),
    ],
    ids=["one who has no room", "a shift of less than nothing"],
)
def test_a_fault_that_was_planted_is_seen(
    sanitized: Path, right: str, wrong: str, told: str
) -> None:
    source = sanitized / TABLE
    good = source.read_text()
    assert good.count(right) == 1
    source.write_text(good.replace(right, wrong))
    try:
        build(sanitized)
        # Enough to fill a chunk, and to leave one.
        few = "compiled and (crowds_come or longest_due)"
        done = run(sanitized, "crowds", "wheel", only=few)
    finally:
        source.write_text(good)
    assert done.returncode != 0
    assert told in done.stdout

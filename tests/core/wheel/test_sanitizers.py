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

ENVIRONMENT: Final = {
    "CFLAGS": "-fsanitize=address,undefined -fno-sanitize-recover=undefined "
    "-fno-omit-frame-pointer -O0 -g1",  # compiled in a third of the time of -O1
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
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]


def run(copy: Path, *command: str, **environment: str) -> str:
    """Run Python there; a sanitizer ends the process at the first fault."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=copy,
        env=os.environ | ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1_500,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, compiled with the sanitizers."""
    require("gcc")
    copy = tmp_path_factory.mktemp("sanitized") / "copy"
    ignored = shutil.ignore_patterns(".*", "build", "*.so", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored)
    run(
        copy, "setup.py", "-q", "build_ext", "--inplace", f"--parallel={os.cpu_count()}"
    )
    return copy


@pytest.mark.parametrize(
    ("files", "only"),
    [
        (("differential", "corpus"), "not reference and not by_hand"),
        pytest.param(
            ("wheel", "framing", "record_batch", "restart"),
            "not reference",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["as the reference", "the other tests"],
)
def test_the_compiled_parts_touch_no_memory_but_their_own(
    sanitized: Path, files: tuple[str, ...], only: str
) -> None:
    libraries = [
        subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    tests = [str(next(sanitized.glob(f"tests/**/test_{name}.py"))) for name in files]
    options = ["-q", "-m", "not slow", "-k", only, "-p", "no:cacheprovider"]
    told = run(
        sanitized,
        *("-c", DRIVER, *options, "--capture=sys", *tests),
        LD_PRELOAD=" ".join(libraries),
    )
    assert " passed" in told
    assert "Sanitizer" not in told
    assert "runtime error" not in told
    # And they were at work: in the process, and in the code that it ran.
    compiled = [*sanitized.glob("liveness/core/*/*.so")]
    assert len(compiled) == len([*sanitized.glob("liveness/core/*/*.pyx")])
    for name in ("/libasan.so", "/libubsan.so", *map(str, compiled)):
        assert name in told
    for code in compiled:
        assert b"__asan_report_load8" in code.read_bytes()
        assert b"__ubsan_handle_" in code.read_bytes()

"""What pyproject.toml cannot say: links of the readme, and flags of the compiled modules.

Three variables steer a build:

- `REQUIRE_COMPILED=1`: a module that does not compile is an error. Otherwise the reference
  in Python is used.
- `LIVENESS_PURE_WHEEL=1`: nothing is compiled, and the wheel is for every machine.
- `CFLAGS`: replaces all flags, as a sanitizer's build says -O0.
"""

import os
import re
import tomllib
from pathlib import Path
from shutil import rmtree

from setuptools import Extension, setup

# Of an earlier build here: what has gone since, or no longer compiles, must not ship.
for library in Path("build").glob("lib*"):
    rmtree(library)


def readme() -> str:
    """README.md, its links leading to the files of this version at the project's host."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    source = Path("liveness/__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', source, re.M)

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["image"] else "blob"
        return f"{link[0]}{project['urls']['Repository']}/{kind}/v{version}/"

    relative = r"(?P<image>!?)\[[^][]*\]\((?![a-z]+:|#)"
    return re.sub(relative, absolute, Path("README.md").read_text(encoding="utf-8"))


def extension(path: Path) -> Extension:
    """A module in Cython."""
    # Nothing is for this machine's processor alone, as what is built may be carried
    # elsewhere. What debuggers want would name folders of this machine. A fused multiply
    # and add rounds once, where the reference in Python rounds twice.
    flags = [] if "CFLAGS" in os.environ else ["-O3", "-g0", "-ffp-contract=off"]
    # Not CI, which many set who only want a gateway's library and have no gcc.
    is_required = os.environ.get("REQUIRE_COMPILED") == "1"
    return Extension(
        ".".join(path.with_suffix("").parts),
        [str(path)],
        extra_compile_args=flags,
        optional=not is_required,
        depends=[str(path) for path in Path("liveness/core").glob("*/_*.pxd")],
    )


is_pure = os.environ.get("LIVENESS_PURE_WHEEL") == "1"
sources = [] if is_pure else sorted(Path("liveness/core").glob("*/_*.pyx"))
setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[extension(path) for path in sources],
    # The C files name paths of this machine.
    options={"build_ext": {"cython_c_in_temp": True}},
)

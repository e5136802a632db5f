"""What pyproject.toml cannot say: the wheel is compiled, and may fail to compile.

The same sources give the same bytes where `SOURCE_DATE_EPOCH` is set.
"""

import os
import re
import tarfile
import tomllib
from gzip import GzipFile
from pathlib import Path
from shutil import rmtree

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist


class CopyAnew(build_py):
    """A file that is gone from the tree must not ship because it was once copied."""

    def run(self) -> None:
        """Copy the sources into an empty folder, unless they serve where they are."""
        if not self.editable_mode:
            rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CompileAnew(build_ext):
    """All of the wheel or none of it: half of it would not serve.

    What does not compile any more must not ship what once did from the same tree. Below
    this is Cython's build_ext, by which sources become C only here: whoever wants the
    metadata or a source distribution does not wait for that.
    """

    def initialize_options(self) -> None:
        """Leave the C files in build/: they name paths of this machine."""
        super().initialize_options()
        self.cython_c_in_temp = True

    def build_extensions(self) -> None:
        """Compile; without all of it this is a package like any, for every machine."""
        compiled = [Path(self.get_ext_fullpath(ext.name)) for ext in self.extensions]
        for path in compiled:
            path.unlink(missing_ok=True)
        super().build_extensions()
        if not all(path.exists() for path in compiled):
            for path in compiled:
                path.unlink(missing_ok=True)
            self.distribution.ext_modules = []


class NameAfterwards(bdist_wheel):
    """A wheel's name says for which machines it is: for all, if nothing was compiled."""

    def run(self) -> None:
        """Build first, then name what there is."""
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        self.skip_build = True  # or it would all be compiled again
        super().run()


class PackAlike(sdist):
    """Who packs the sources, when, and with which umask is nowhere in the archive."""

    def make_archive(self, base_name: str, *_args: object, **options: object) -> str:
        """Pack a folder; pip and PyPI want a `.tar.gz`."""
        path, folder = f"{base_name}.tar.gz", str(options["base_dir"])
        now = Path(folder).stat().st_mtime  # it was just made
        self.mkpath(self.dist_dir)
        packed_at = int(os.environ.get("SOURCE_DATE_EPOCH", now))

        def alike(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.mtime, member.uid, member.gid = packed_at, 0, 0
            member.uname = member.gname = ""
            return member

        with (
            Path(path).open("wb") as file,
            GzipFile("", "wb", fileobj=file, mtime=packed_at) as stream,
            tarfile.open(fileobj=stream, mode="w") as archive,
        ):
            archive.add(folder, filter=alike)
        return path


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


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    # Where this is set the reference would serve, whatever is compiled: such a wheel is
    # for every machine.
    ext_modules=[]
    if os.environ.get("LIVENESS_PURE_WHEEL") == "1"
    else [
        Extension(
            ".".join(path.with_suffix("").parts),
            [str(path)],
            # Nothing is for this machine's processor alone, as what is built may be
            # carried elsewhere. CFLAGS take the place of all flags: a sanitizer's build
            # says -O1. What debuggers want would name folders of this machine. A fused
            # multiply and add rounds once, where the reference in Python rounds twice.
            extra_compile_args=(
                [] if "CFLAGS" in os.environ else ["-O3", "-g0", "-ffp-contract=off"]
            ),
            # Not CI, which many set who only want a gateway's library and have no gcc.
            optional=os.environ.get("REQUIRE_COMPILED") != "1",
        )
        for path in sorted(Path("liveness/core").glob("*/_*.pyx"))
    ],
    cmdclass={
        "bdist_wheel": NameAfterwards,
        "build_ext": CompileAnew,
        "build_py": CopyAnew,
        "sdist": PackAlike,
    },
)

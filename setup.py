"""What pyproject.toml cannot say: the wheel is compiled, and may fail to compile."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildAnew(build_ext):
    """What does not compile any more must not ship what once did from the same tree."""

    def build_extension(self, ext: Extension) -> None:
        """Compile *ext*, and leave nothing in its place if that fails."""
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        super().build_extension(ext)


extensions = cythonize(
    "liveness/core/_*.pyx",
    build_dir="build",  # the C files name paths of this machine: no place among ours
    compiler_directives={"language_level": "3"},
)
for extension in extensions:  # cythonize drops what it is told of these beforehand
    # Nothing is for this machine's processor alone, as what is built may be carried
    # elsewhere. CFLAGS take the place of all flags: a sanitizer's build says -O1.
    extension.extra_compile_args = [] if "CFLAGS" in os.environ else ["-O3"]
    extension.optional = not os.environ.get("CI")

setup(ext_modules=extensions, cmdclass={"build_ext": BuildAnew})

"""`liveness version`: the versions that a bug report needs."""

from platform import python_version
from typing import Final

from liveness import __version__
from liveness.cli.options import declared
from liveness.config.compiled import WHEEL, WHY_PURE_PYTHON
from liveness.core.wire.frames import PROTOCOL

command: Final = declared("version", "version")


@command.default
def version() -> None:
    """Print the versions of the program, the wheel, Python and the protocol."""
    print(f"liveness {__version__} (Python {python_version()}, protocol {PROTOCOL})")
    print(
        f"wheel: {WHEEL}" + (f", because {WHY_PURE_PYTHON}" if WHY_PURE_PYTHON else "")
    )

"""One target under libFuzzer, which ends the process that it runs in.

    python -m tests.fuzz.drive TARGET [libFuzzer's own arguments]

The core's Python is instrumented for coverage as it is imported; what is compiled gives
none, and is held to the reference, which does. Only `make fuzz` needs atheris.
"""

import shlex
import sys

import atheris

with atheris.instrument_imports(include=["liveness"]):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    _, name, *options = sys.argv
    # To merge, libFuzzer runs itself again, by a shell and whatever stands in this place.
    itself = f"{shlex.quote(sys.executable)} -m tests.fuzz.drive {name}"
    atheris.Setup([itself, *options], TARGETS[name])
    atheris.Fuzz()

"""What the tests of the core share."""

from types import ModuleType

import pytest

from liveness.core import wheel, wire

try:
    from liveness.core import _wheel, _wire
except ImportError:  # not compiled here; tests/test_build.py says whether it should be
    WHEELS: list[ModuleType] = [wheel]
    READERS: list[ModuleType] = [wire]
else:
    WHEELS = [wheel, _wheel]
    READERS = [wire, _wire]


def is_compiled(module: ModuleType) -> str:
    """The name of an implementation in the ids of tests."""
    return "compiled" if module.__name__.split(".")[-1][0] == "_" else "reference"


# Session-scoped, since hypothesis allows no function-scoped fixture.
@pytest.fixture(scope="session", params=WHEELS, ids=is_compiled)
def wheel_class(request: pytest.FixtureRequest) -> type[wheel.Wheel]:
    """Each implementation of the wheel."""
    implementation: type[wheel.Wheel] = request.param.Wheel
    return implementation


@pytest.fixture(scope="session", params=READERS, ids=is_compiled)
def reader_class(request: pytest.FixtureRequest) -> type[wire.Reader]:
    """Each implementation of the reader."""
    implementation: type[wire.Reader] = request.param.Reader
    return implementation

"""What the tests of the core share."""

from types import ModuleType

import pytest

from liveness.core import framing, wheel

try:
    from liveness.core import _wheel, _wire
# Not compiled here? `tests/project/test_compiled.py` says whether it should be.
except ImportError:
    WHEELS: list[ModuleType] = [wheel]
    READERS: list[ModuleType] = [framing]
else:
    WHEELS = [wheel, _wheel]
    READERS = [framing, _wire]


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
def reader_class(request: pytest.FixtureRequest) -> type[framing.Reader]:
    """Each implementation of the reader."""
    implementation: type[framing.Reader] = request.param.Reader
    return implementation

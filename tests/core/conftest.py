"""Shared by the tests of the core."""

from types import ModuleType
from typing import Any

import pytest

from liveness.core.wheel import record_batch, restart, wheel
from liveness.core.wire import framing

try:
    from liveness.core.wheel import _records, _restart, _wheel
    from liveness.core.wire import _wire
# Not compiled here? `tests/project/test_compiled.py` says whether it should be.
except ImportError:
    WHEELS: list[ModuleType] = [wheel]
    READERS: list[ModuleType] = [framing]
    BATCHES: list[ModuleType] = [record_batch]
    RESTARTS: list[ModuleType] = [restart]
else:
    WHEELS = [wheel, _wheel]
    READERS = [framing, _wire]
    BATCHES = [record_batch, _records]
    RESTARTS = [restart, _restart]


def is_compiled(module: ModuleType) -> str:
    """The name of an implementation in the ids of tests."""
    return "compiled" if module.__name__.split(".")[-1][0] == "_" else "reference"


# Session-scoped, since hypothesis allows no function-scoped fixture.
@pytest.fixture(scope="session", params=WHEELS, ids=is_compiled)
def wheel_class(request: pytest.FixtureRequest) -> type[wheel.Wheel]:
    """Each implementation of the wheel."""
    implementation: type[wheel.Wheel] = request.param.Wheel
    return implementation


def twin_of(modules: list[ModuleType], wheel_class: type[wheel.Wheel]) -> Any:
    """Of the implementations of a module, the one that comes with one of the wheel."""
    classes = [implementation.Wheel for implementation in WHEELS]
    return modules[classes.index(wheel_class)]


@pytest.fixture(scope="session", params=READERS, ids=is_compiled)
def reader_class(request: pytest.FixtureRequest) -> type[framing.Reader]:
    """Each implementation of the reader."""
    implementation: type[framing.Reader] = request.param.Reader
    return implementation

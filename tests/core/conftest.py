"""What the tests of the core share."""

import pytest

from liveness.core import wheel


# For the session, not for a test: hypothesis asks one test for many examples.
@pytest.fixture(scope="session", params=[wheel], ids=lambda wheel: wheel.IMPLEMENTATION)
def wheel_class(request: pytest.FixtureRequest) -> type[wheel.Wheel]:
    """Every implementation of the wheel there is."""
    implementation: type[wheel.Wheel] = request.param.Wheel
    return implementation

"""What the tests of the client library share with those of the core."""

from tests.core.conftest import wheel_class

__all__ = ["wheel_class"]

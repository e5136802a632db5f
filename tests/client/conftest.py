"""Shared by the tests of the client library and of the core."""

from tests.core.conftest import wheel_class

__all__ = ["wheel_class"]

"""What the tests of webhooks share."""

from tests.service.conftest import jumping

__all__ = ["jumping"]

"""One redis-server for all histories of a process."""

from collections.abc import Iterator

import pytest

from tests.simulation.cluster.redis import Connection, connected
from tests.simulation.cluster.world import virtual_functions


@pytest.fixture(scope="session")
def redis() -> Iterator[Connection]:
    """A server with the functions of the project, on virtual time."""
    with connected() as connection:
        connection("FUNCTION", "LOAD", virtual_functions().source)
        yield connection

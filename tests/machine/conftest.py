"""Shared by the runs of containers."""

from collections.abc import Iterator

import pytest

from tests.machine.podman import Podman, kept, line_of


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """A Podman that has the sidecar's image."""
    with kept(tmp_path_factory.mktemp("podman")) as made:
        made.build(line_of("docs/deployment.md", "podman build"))
        yield made

"""Sidecars for the tests of this folder: real processes on real sockets."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from tests.system.sidecar import Sidecar

Start = Callable[..., Sidecar]

QUICK_FLUSH_S: Final = 0.1
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One for a whole file, where nobody falls silent: tests use names of their own."""
    with Sidecar(tmp_path_factory.mktemp("s")) as running:
        yield running.start()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One for the whole file, where users fall silent within a second."""
    folder = tmp_path_factory.mktemp("s")
    with Sidecar(folder, 1, flush_s=QUICK_FLUSH_S) as running:
        yield running.start()


@pytest.fixture
def name() -> str:
    """A gateway's, used by no other test."""
    return f"gw-{next(_numbers):04}"  # and no other begins with it


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Makes sidecars that are not started yet, and ends what of them runs at the end."""
    with ExitStack() as stack:

        def made(timeout_s: float = 60, **settings: object) -> Sidecar:
            folder = tmp_path_factory.mktemp("s")
            return stack.enter_context(Sidecar(folder, timeout_s, **settings))

        yield made


@pytest.fixture
def start(make: Start) -> Start:
    """Starts sidecars of one test, by `start(timeout_s, limits_window=100, …)`."""
    return lambda timeout_s=60, **settings: make(timeout_s, **settings).start()

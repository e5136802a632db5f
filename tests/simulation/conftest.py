"""Tells after the tests what was simulated."""

from collections.abc import Callable

import pytest

Note = Callable[[int, float], None]

_done: list[tuple[int, float]] = []


@pytest.fixture
def simulated() -> Note:
    """Note a seed that was run, and its virtual seconds."""
    return lambda seed, seconds: _done.append((seed, seconds))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _done:
        seeds = [seed for seed, _ in _done]
        hours = sum(seconds for _, seconds in _done) / 3600
        terminalreporter.write_line(
            f"simulated: {len(seeds)} seeds, {min(seeds)} to {max(seeds)}, "
            f"{hours:.2f} virtual hours"
        )

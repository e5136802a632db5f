"""What every test shares."""

import os
import re
import signal
from collections.abc import Callable, Generator, Iterator
from math import inf
from tempfile import gettempdir
from typing import Any, Final, TypeVar

import pytest
import trio
from hypothesis import settings
from trio.testing import MockClock

from liveness.config.sources import FILE_VARIABLE
from tests.helpers.held_clock import Holds, held
from tests.helpers.processes import NO_SETTINGS, environment
from tests.helpers.redis_servers import certificates, redis, redis_cluster

__all__ = ["certificates", "redis", "redis_cluster"]  # fixtures for every folder

# A shell gives its background jobs no SIGINT, and they pass that on: but here commands
# are started that are to end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Under nohup, which holds for us, it is the same with SIGHUP.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# A user without a session has no such folder, and then the socket has no default.
os.environ.setdefault("XDG_RUNTIME_DIR", gettempdir())

# An example that takes long is no failure: the machine may be busy.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

Result = TypeVar("Result")

# Of a test with its case, and of a text within that: one can still read and type it.
MOST_NAME: Final = 100
MOST_PART: Final = 20

# The file that computes the longest.
LONGEST: Final = "test_simulation.py"

# Fixtures that build a package, an image, or the compiled code again.
BUILDING: Final = {"dist", "image", "sanitized"}

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.fixture(scope="session", autouse=True)
def _no_settings_of_this_host() -> Iterator[None]:
    """Keep an installed sidecar's settings from the tests and the processes they start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - environment().keys():
            patch.delenv(name)
        patch.setenv(FILE_VARIABLE, str(NO_SETTINGS))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_lower_priority() -> Iterator[None]:
    """Keep commands that run in this process from giving way to others for good.

    All sidecars that it starts later would do so, too, and be late beside busy neighbours.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "nice", lambda by: by)
        yield


# Under .ci/run, which installs what the tests need, a skip hides a fault: it fails.
# Outermost, so that an expected failure (wasxfail) has been marked as such by then.
def without_skips(report: Report) -> Report:
    excused = hasattr(report, "wasxfail") or os.environ.get("CI") != "true"
    if report.skipped and not excused:
        report.outcome = "failed"
        report.longrepr = f"skipped, which fails under CI: {report.longreprtext}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[
    None, pytest.TestReport, pytest.TestReport
]:
    return without_skips((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[
    None, pytest.CollectReport, pytest.CollectReport
]:
    return without_skips((yield))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what has to be installed so that nothing is skipped."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = " ".join(str(report.longrepr) for report in skipped)
    if packages := sorted(set(re.findall(r"apt install ([a-z0-9-]+)", reasons))):
        said = f"to have those that were skipped: apt install {' '.join(packages)}"
        terminalreporter.write_line(said, yellow=True)


def pytest_make_parametrize_id(val: object) -> str | None:
    """A long text is named by how it begins."""
    if isinstance(val, str | bytes) and len(val) > MOST_PART:
        return ascii(val[:MOST_PART]).strip("b'\"")[:MOST_PART]
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that wait for something large, and refuse those that nobody could name.

    The longest file comes first: else all would wait for it in the end.
    """
    items.sort(key=lambda it: it.path.name != LONGEST)
    for item in items:
        if BUILDING & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.long)
    long = [item.nodeid for item in items if len(item.name) > MOST_NAME]
    if long:
        raise pytest.UsageError("\n".join(["give these shorter names (ids=):", *long]))


@pytest.fixture
def holds() -> Holds:
    """What keeps the clock of the test from jumping at once."""
    return []


@pytest.fixture
def jumping(
    autojump_clock: MockClock,
    holds: Holds,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> MockClock:
    """Virtual time that does not pass while a thread is at work.

    trio's own does not know of threads: it would take a commit for idleness and jump
    to the next deadline, whichever that is.

    An async test has it also by `usefixtures`, or through another fixture: by itself
    pytest-trio takes a clock only from the test's own arguments.
    """

    def run(test: Any, **options: Any) -> None:
        trio.run(test, **{**options, "clock": autojump_clock})

    request.node.add_marker(pytest.mark.trio(run=run), append=False)
    run_sync = trio.to_thread.run_sync

    async def standing_still(
        work: Callable[..., Result],
        *args: object,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> Result:
        with held(autojump_clock, holds, inf):
            return await run_sync(
                work, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter
            )

    monkeypatch.setattr(trio.to_thread, "run_sync", standing_still)
    return autojump_clock

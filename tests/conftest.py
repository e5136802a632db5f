"""What every test shares."""

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


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

"""Measured figures with their floors, as a table and as JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from liveness.lab.common.judge import Judge

OURS: Final = "liveness"


@dataclass(frozen=True, slots=True)
class Figure:
    scenario: str
    name: str
    value: float  # NaN if it could not be measured
    unit: str  # "" for a count
    most: float | None = None  # the floor: the largest value that is promised
    least: float | None = None  # the floor of a figure that is better the higher it is
    system: str = OURS
    users: int | None = None  # if it differs between the figures of a scenario

    @property
    def is_met(self) -> bool | None:
        """Whether the floor is met; None if there is none. NaN never meets one."""
        if self.most is not None:
            return self.value <= self.most
        return None if self.least is None else self.value >= self.least

    @property
    def label(self) -> str:
        if self.users is None:
            return self.name
        return f"{self.users:,} users, {self.system}: {self.name}"

    @property
    def amount(self) -> str:
        if math.isnan(self.value):
            return "not measured"
        return f"{number(self.value)} {self.unit}".rstrip()

    @property
    def floor(self) -> str:
        if self.most is not None:
            return f"≤ {self.most:,g} {self.unit}".rstrip()
        return "" if self.least is None else f"≥ {self.least:,g} {self.unit}".rstrip()

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "MISSED"}[self.is_met]

    def as_map(self) -> dict[str, object]:
        value = self.value if math.isfinite(self.value) else None
        return {**asdict(self), "value": value, "met": self.is_met}


HEAD: Final = ("scenario", "figure", "value", "floor", "")


def mistakes(scenario: str, verdict: Judge) -> list[Figure]:
    return [
        Figure(scenario, "early offlines", verdict.early, "", 0.0),
        Figure(scenario, "false offlines", verdict.false, "", 0.0),
        Figure(scenario, "missing", verdict.missing, "", 0.0),
    ]


def are_met(figures: Sequence[Figure]) -> bool:
    return all(figure.is_met is not False for figure in figures)


def summary(figures: Sequence[Figure]) -> str:
    verdicts = [figure.is_met for figure in figures if figure.is_met is not None]
    return f"{verdicts.count(True)} of {len(verdicts)} floors met"


def as_table(figures: Sequence[Figure]) -> str:
    """The figures as lines of text; each scenario is named once."""
    rows, scenario = [HEAD], ""
    for figure in figures:
        cell = "" if figure.scenario == scenario else figure.scenario
        scenario = figure.scenario
        rows.append((cell, figure.label, figure.amount, figure.floor, figure.verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(f"{_line(row, widths)}\n" for row in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
    cells[2] = row[2].rjust(widths[2])
    return "  ".join(cells).rstrip()


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"

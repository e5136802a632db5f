"""Numbers that are drawn by log scale."""

from math import exp, log
from random import Random


def by_scale(random: Random, least: float, most: float) -> float:
    """A number of which each order of magnitude is as likely."""
    return exp(random.uniform(log(least), log(most)))


def whole(random: Random, least: int, most: int) -> int:
    """The same, of whole numbers."""
    return round(by_scale(random, least, most))

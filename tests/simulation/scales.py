"""Numbers that are drawn by log scale."""

from math import exp, log
from random import Random


def by_scale(random: Random, least: float, most: float) -> float:
    """A number between two, each power of ten as likely as the next."""
    return exp(random.uniform(log(least), log(most)))


def whole(random: Random, least: int, most: int) -> int:
    """A whole number between two, both included; small ones are likelier."""
    return int(by_scale(random, least, most + 0.999))

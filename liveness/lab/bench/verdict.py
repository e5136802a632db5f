"""The judge, for callers in this room that do not name its own module yet."""

from liveness.lab.common.judge import Verdict, judge, p99_ms, quantile

__all__ = ["Verdict", "judge", "p99_ms", "quantile"]

"""What can be made to happen, by a key or by `--script "5 silence, 10 stop 3"`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from liveness.errors import LivenessError

MOST_STEPS: Final = 100


class ScriptError(LivenessError):
    """A script cannot be followed. The person's to mend; nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing that can be made to happen; some take a number."""

    key: str
    what: str
    number: float = 0.0  # if none is named
    least: float = 0.0
    most: float = 0.0  # 0: takes none


# What they are called beside their keys fits 80 columns.
ACTIONS: Final = {
    "silence": Action(key="s", what="silence", number=100, least=1, most=10_000),
    "gateway": Action(key="g", what="kill gateway"),
    "stop": Action(key="z", what="stop/go sidecar", number=3, least=0.1, most=60),
    "restart": Action(key="r", what="restart it"),
    "kill": Action(key="k", what="kill it"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """An action, and when: seconds after the gateway opened."""

    at_s: float
    name: str
    number: float


def parsed(script: str, *, seconds: float) -> list[Step]:
    """The steps of *script*, in order of time.

    Raises:
        ScriptError: One of them is none, or comes when the demo is over.
    """
    if not script.strip():
        return []
    steps = [_step(text.strip(), seconds) for text in script.split(",")]
    if len(steps) > MOST_STEPS:
        raise ScriptError(f"--script has {len(steps)} steps; use {MOST_STEPS} or fewer")
    return sorted(steps, key=lambda step: step.at_s)


def _step(text: str, seconds: float) -> Step:
    match text.split():
        case [at, name]:
            number = None
        case [at, name, number]:
            pass
        case _:
            raise _wrong(text, "is no step; write SECONDS ACTION, as in 5 silence")
    action = ACTIONS.get(name)
    if action is None:
        *some, last = ACTIONS
        raise _wrong(text, f"has no action; use {', '.join(some)} or {last}")
    at_s = _number(at)
    if at_s is None or not at_s >= 0:  # as NaN is not
        raise _wrong(text, "begins with no number of seconds")
    if at_s >= seconds:
        told = f"comes when the demo is over, after {seconds:g} s"
        raise _wrong(text, f"{told}; let it be earlier, or use a longer --seconds")
    return Step(at_s, name, _asked(text, name, action, number))


def _asked(text: str, name: str, action: Action, number: str | None) -> float:
    if number is None:
        return action.number
    if not action.most:
        raise _wrong(text, f"has one word too many; {name} takes no number")
    asked = _number(number)
    if asked is None or not action.least <= asked <= action.most:
        raise _wrong(text, f"{name} takes {action.least:g} to {action.most:g}")
    return asked


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _wrong(text: str, why: str) -> ScriptError:
    return ScriptError(f"--script: {text!r} {why}")


def keys() -> Iterator[tuple[str, str]]:
    """Each key, and what it does."""
    for action in ACTIONS.values():
        yield action.key, action.what
    yield "q", "end"

"""The actions of the demo, and its scripts: `--script "5 silence, 10 stop 3"`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from liveness.errors import LivenessError

MOST_STEPS: Final = 100
MOST_HOSTS: Final = 9  # each has a digit as its key


class ScriptError(LivenessError):
    """A script is invalid. Nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that a script or a key can do; some actions take a number."""

    key: str
    what: str
    number: float = 0.0  # the default
    least: float = 0.0
    most: float = 0.0  # 0: takes no number


# The texts beside the keys fit 80 columns together.
ACTIONS: Final = {
    "silence": Action(key="s", what="silence", number=100, least=1, most=10_000),
    "gateway": Action(key="g", what="kill gateway"),
    "stop": Action(key="z", what="stop sidecar", number=3, least=0.1, most=60),
    "restart": Action(key="r", what="restart it"),
    "kill": Action(key="k", what="kill it"),
}


def actions_of(hosts: int) -> dict[str, Action]:
    """The actions of the demo; with several hosts, those on hosts and on Redis.

    A host or Redis that such an action has killed is started by the same action.
    """
    if hosts == 1:
        return ACTIONS
    return {
        "silence": Action(key="s", what="silence", number=20, least=1, most=10_000),
        "host": Action(
            key=f"1-{hosts}", what="kill/start host", number=1, least=1, most=hosts
        ),
        "redis": Action(key="r", what="kill/start Redis"),
    }


@dataclass(frozen=True, slots=True)
class Step:
    """An action, and when: seconds after the gateway opened."""

    at_s: float
    name: str
    number: float


def parsed_script(
    script: str, *, seconds: float, actions: Mapping[str, Action] = ACTIONS
) -> list[Step]:
    """The steps of *script*, ordered by time.

    Raises:
        ScriptError: A step is invalid, or comes after the end of the demo.
    """
    if not script.strip():
        return []
    steps = [_step(text.strip(), seconds, actions) for text in script.split(",")]
    if len(steps) > MOST_STEPS:
        raise ScriptError(f"--script has {len(steps)} steps; use {MOST_STEPS} or fewer")
    return sorted(steps, key=lambda step: step.at_s)


def _step(text: str, seconds: float, actions: Mapping[str, Action]) -> Step:
    words = text.split()
    if len(words) not in (2, 3):
        raise _error(text, "is not a step; write SECONDS ACTION, as in 5 silence")
    at_s, name = _float(words[0]), words[1]
    action = actions.get(name)
    if action is None:
        *some, last = actions
        raise _error(text, f"has an unknown action; use {', '.join(some)} or {last}")
    if at_s is None or not at_s >= 0:  # written so that NaN is refused
        raise _error(text, "does not begin with a number of seconds")
    if at_s >= seconds:
        message = f"is after the end of the demo ({seconds:g} s)"
        raise _error(text, f"{message}; make it earlier, or use a longer --seconds")
    if len(words) == 2:
        return Step(at_s, name, action.number)
    if not action.most:
        raise _error(text, f"has one word too many; {name} takes no number")
    number = _float(words[2])
    if number is None or not action.least <= number <= action.most:
        raise _error(text, f"{name} takes {action.least:g} to {action.most:g}")
    return Step(at_s, name, number)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _error(text: str, problem: str) -> ScriptError:
    return ScriptError(f"--script: {text!r} {problem}")

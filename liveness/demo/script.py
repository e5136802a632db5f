"""The actions of the demo, and its scripts: `--script "5 silence, 10 stop 3"`."""

from dataclasses import dataclass
from typing import Final

from liveness.errors import LivenessError

MOST_STEPS: Final = 100


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
    "stop": Action(key="z", what="stop/go sidecar", number=3, least=0.1, most=60),
    "restart": Action(key="r", what="restart it"),
    "kill": Action(key="k", what="kill it"),
}
KEYS: Final = {**{action.key: action.what for action in ACTIONS.values()}, "q": "end"}


@dataclass(frozen=True, slots=True)
class Step:
    """An action, and when: seconds after the gateway opened."""

    at_s: float
    name: str
    number: float


def parsed_script(script: str, *, seconds: float) -> list[Step]:
    """The steps of *script*, ordered by time.

    Raises:
        ScriptError: A step is invalid, or comes after the end of the demo.
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
            raise _error(text, "is not a step; write SECONDS ACTION, as in 5 silence")
    action = ACTIONS.get(name)
    if action is None:
        *some, last = ACTIONS
        raise _error(text, f"has an unknown action; use {', '.join(some)} or {last}")
    at_s = _float(at)
    if at_s is None or not at_s >= 0:  # written so that NaN is refused
        raise _error(text, "does not begin with a number of seconds")
    if at_s >= seconds:
        message = f"is after the end of the demo ({seconds:g} s)"
        raise _error(text, f"{message}; make it earlier, or use a longer --seconds")
    return Step(at_s, name, _number(text, name, action, number))


def _number(text: str, name: str, action: Action, word: str | None) -> float:
    if word is None:
        return action.number
    if not action.most:
        raise _error(text, f"has one word too many; {name} takes no number")
    number = _float(word)
    if number is None or not action.least <= number <= action.most:
        raise _error(text, f"{name} takes {action.least:g} to {action.most:g}")
    return number


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _error(text: str, problem: str) -> ScriptError:
    return ScriptError(f"--script: {text!r} {problem}")

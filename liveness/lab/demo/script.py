"""The actions of the demo, and its scripts: `--script "5 silence, 10 stop 3"`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

MOST_HOSTS: Final = 9  # each has a digit as its key


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


class Step(NamedTuple):
    """An action, and when: seconds after the gateway opened."""

    at_s: float
    name: str
    number: float


def parsed_script(
    script: str, *, seconds: float, actions: Mapping[str, Action] = ACTIONS
) -> list[Step]:
    """The steps of *script*, ordered by time."""
    if not script.strip():
        return []
    return sorted(_step(text.strip(), seconds, actions) for text in script.split(","))


def _step(text: str, seconds: float, actions: Mapping[str, Action]) -> Step:
    with suppress(ValueError, KeyError):
        at, name, *number = text.split()
        action = actions[name]
        step = Step(float(at), name, float(number[0]) if number else action.number)
        is_number = len(number) < 2 and action.least <= step.number <= action.most
        if is_number and 0 <= step.at_s < seconds:
            return step
    known = ", ".join(
        f"{name} [{action.least:g} to {action.most:g}]" if action.most else name
        for name, action in actions.items()
    )
    raise ValueError(
        f"--script: {text!r} is no step; write SECONDS below {seconds:g}, and one of {known}"
    )

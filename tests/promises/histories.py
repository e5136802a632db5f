"""A run that keeps every promise, and what changes its history."""

from typing import Any, Final

from tests.promises.run_history import History, LinkHistory
from tests.simulation.plan import GatewayPlan, Plan, Remind, Visit


def quiet_plan() -> Plan:
    """A world in which nobody is hurt, so that all is as prompt as it can be."""
    steps = (
        Visit(1.0, 0, "silent", 0.0, 1.0, False, None),
        Visit(1.5, 0, "polite", 3.0, 0.5, True, None),
        Visit(2.0, 0, "moving", 30.0, 0.5, False, None),
        Visit(6.0, 0, "moving", 9.0, 0.5, False, None),
        Remind(2.0, 0, "kept", 1.0, None),
        Remind(2.0, 0, "cancelled", 5.0, 1.0),
    )
    return Plan(
        seed=1,
        timeout_s=3.0,
        hold_s=4.0,
        max_pending=1_000,
        limits={"window": 10, "pause_firing": 100, "pause_reading": 1_000, "tail": 20},
        gateways=(GatewayPlan("gw-0", None, None, None),),
        watchers=1,
        lasts_s=20.0,
        steps=steps,
        device_separator=":",
    )


PLAN: Final = quiet_plan()


def everywhere(history: History, seq: int, **changes: Any) -> None:
    """Change a record wherever it was delivered."""
    for link in history.links:
        for delivered in link.delivered:
            if delivered.record["seq"] == seq:
                delivered.record.update(changes)


def nowhere(history: History, seq: int) -> None:
    """Have a record delivered to nobody."""
    for link in history.links:
        link.delivered = [it for it in link.delivered if it.record["seq"] != seq]


def seq_of(history: History, **fields: Any) -> int:
    """The seq of the first record like this."""
    for delivered in reader(history).delivered:
        if delivered.record.items() >= fields.items():
            return int(delivered.record["seq"])
    raise AssertionError(f"no record like {fields}")


def reader(history: History) -> LinkHistory:
    return history.links[-1]


def gateway(history: History) -> LinkHistory:
    return next(link for link in history.links if link.role == "gateway")


def record(history: History, seq: int) -> dict[str, Any]:
    return next(
        it.record for it in reader(history).delivered if it.record["seq"] == seq
    )


def late(history: History, seq: int, seconds: float) -> float:
    """Have a record decided later; return when it then was."""
    at_ms = record(history, seq)["at"] + round(seconds * 1000)
    everywhere(history, seq, at=at_ms)
    return history.virtual(at_ms)


def silent(history: History) -> int:
    return seq_of(history, uid="silent", kind="offline")


def moved(history: History) -> dict[str, Any]:
    return record(history, seq_of(history, uid="moving", kind="moved"))


def decided_at(history: History, seq: int) -> float:
    return history.virtual(record(history, seq)["at"])

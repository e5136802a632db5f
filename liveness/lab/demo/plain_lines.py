"""The demo in plain lines, few enough to follow, and the report at its end."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final

import trio

from liveness.lab.common.host_judge import GUEST, KINDS, SILENCED, Faults
from liveness.lab.common.judge import quantile
from liveness.lab.common.promises import NO_PROMISE
from liveness.lab.demo.demo_run import ACTION, DemoRun
from liveness.lab.demo.plans import WITH_ONE_HOST
from liveness.text import escaped

TICK_S: Final = 1.0  # from one line of status to the next
# Most records shown in each tick; the others are only counted.
MOST_RECORDS: Final = 4
HINT: Final = '  live page; join by nc, and type {"login": "ada"}; see the records:'
ENDS: Final = ("silence", "logout", "moved", "gateway_lost")

# An abandoned print continues in its thread, and keeps the limiter until it is done.
# Otherwise the report could begin in the middle of its line.
_PRINTING: Final = trio.CapacityLimiter(1)


async def say(*lines: str) -> None:
    """Prints lines in a thread, so that a slow terminal does not delay the users.

    A reader can stop the terminal with Ctrl-S; that must not make users fall silent.
    """
    text = "".join(f"{line}\n" for line in lines)  # one write, even if unbuffered
    show = partial(print, text, end="", flush=True)
    await trio.to_thread.run_sync(show, abandon_on_cancel=True, limiter=_PRINTING)


class PlainLines:
    """Prints every second the actions, a few records, and the state of the run."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._records = 0

    def add(self, line: str, what: str) -> None:
        if what == ACTION or self._records < MOST_RECORDS:
            self._lines.append(line)
        self._records += what != ACTION

    async def run(self, demo: DemoRun) -> None:
        await say(HINT, *(f"    {place}" for place in demo.places()))
        while True:
            await trio.sleep(TICK_S)
            await say(*self.lines(), status(demo))

    def lines(self) -> list[str]:
        lines, others = self._lines, self._records - MOST_RECORDS
        self._lines, self._records = [], 0
        return [*lines, f"{'':14}and {others} more"] if others > 0 else lines


def status(demo: DemoRun) -> str:
    line = f"{demo.elapsed_s:5.0f} s   online {demo.judge.online}"
    if demo.cluster:
        hosts = [
            str(host.judge.online) if host.state == "up" else host.state
            for host in demo.hosts
        ]
        line += f" ({' + '.join(hosts)}), hops {demo.hops}"
    else:
        line += f", said {sum(user.lines_said for user in demo.users)}"
    counts = {
        how: demo.judge.ends[how] for how in (*ENDS, "host_lost") if how != "moved"
    }
    counts.update(demo.faults + demo.faults_anywhere)
    return line + "".join(
        f", {what} {number}" for what, number in counts.items() if number
    )


def table(demo: DemoRun) -> Iterator[str]:
    rows = dict[str, Counter[str]]()
    if demo.cluster:
        columns: tuple[str, ...] = ("online", *ENDS, "host_lost")
        for host in demo.hosts:
            rows[host.name] = host.judge.ends + Counter(online=host.judge.online)
        rows["anywhere"] = demo.judge.ends + Counter(online=demo.judge.online)
    else:
        columns, judge = ("users", "online", *ENDS), demo.hosts[0].judge
        for plan in (*dict.fromkeys(sorted(WITH_ONE_HOST)), SILENCED):
            rows[plan] = Counter()
        for user in judge.users.values():
            rows[user.plan].update(users=1, online=user.online_since is not None)
        rows[GUEST] = Counter(users=judge.guests, online=judge.guests)
        for (plan, how), number in judge.ends_of.items():
            rows[plan][how] += number
            rows[plan]["users"] += plan == GUEST and number
        rows["all"] = sum(rows.values(), Counter())
    head = "".join(f"{column:>{len(column) + 2}}" for column in columns)
    yield f"{'':11}{head}"
    for name, row in rows.items():
        cells = (f"{row[column]:>{len(column) + 2}}" for column in columns)
        yield f"{name:<11}{''.join(cells)}"


def report(demo: DemoRun) -> Iterator[str]:
    yield ""
    yield from table(demo)
    yield ""
    if done := demo.director.done:
        yield "done: " + ", ".join(f"{name} {times}" for name, times in done.items())
    yield from measures(demo)
    yield from fault_lines(demo)
    for host in demo.hosts:
        of = f" ({host.name})" if demo.cluster else ""
        yield from (f"{line}{of}" for line in listed(host.judge.faults))
    if demo.cluster:
        yield from listed(demo.cluster.judge.faults)


def measures(demo: DemoRun) -> Iterator[str]:
    found = [late_s for host in demo.hosts for late_s in host.judge.lateness_s]
    p50, p99, most = (quantile(found, q) for q in (0.5, 0.99, 1))
    measured = f"p50 {p50:.3f} s, p99 {p99:.3f} s, max {most:.3f} s"
    yield f"lateness: {measured if found else 'none was measured'}"
    yield f"    from a user's last line + {demo.timeout_s:g} s to the record; up to"
    yield f"    {demo.flush_s:.3f} s are the gateway's, which collects activity"
    if not_measured := sum(host.judge.not_measured for host in demo.hosts):
        yield f"    {not_measured} more were not measured: meanwhile a process was killed,"
        yield "    stopped or restarted, or this one stood still"
    if demo.cluster:
        yield f"hops: {demo.hops}"


def fault_lines(demo: DemoRun) -> Iterator[str]:
    yield "faults: " + ", ".join(f"{kind} {demo.faults[kind]}" for kind in KINDS)
    if demo.cluster:
        yield f"faults anywhere: false {demo.faults_anywhere['false']}"


def listed(faults: Faults) -> Iterator[str]:
    for fault in faults.listed:
        line = f"    {fault.kind}: {escaped(fault.who)} {fault.breach.what}"
        if fault.breach.promise != NO_PROMISE:
            line += f" (promise {fault.breach.promise})"
        yield line

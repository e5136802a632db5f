"""Which situations the calls of a history come into, as their answers show."""

from collections.abc import Mapping
from typing import Any

from liveness.cluster.format import HostState, StoredHost
from liveness.outlets.cluster.session_changes import Call
from tests.simulation.situations import reached


def notice(
    call: Call, answer: Any, host: StoredHost | None, *, knows: bool, is_old: bool
) -> None:
    """Note what a call met; of a `fence`, *host* is the suspect as it was before."""
    word, args = answer[0].decode(), call.args
    state = host.state if host else None
    if is_old:
        _notice_old(call, word)
    match call.function, word:
        case _, "late":
            reached("cluster: changes come later than their clock says")
        case _, "damaged":
            reached("cluster: another program's change of the keys is noticed")
        case "begin", _:
            _notice_begin(call, answer, host)
        case "apply" | "beat", "unknown" if knows:
            reached("cluster: a call comes after its host was reaped")
        case "apply" | "beat" | "assert", "fenced":
            reached(
                "cluster: a call comes after its host was declared lost", rarely=True
            )
        case "apply" | "beat" | "assert", "epoch":
            reached("cluster: a process calls that another one has replaced")
        case "apply" | "beat", "asserting":
            reached("cluster: changes come while their host lists its sessions")
        case "assert", "live":
            reached("cluster: a piece of a list comes after the list ended")
        case "assert", "gap":
            reached("cluster: a piece of a list comes twice or too early")
        case "apply" | "beat", "gap" if answer[1] > int(args[4]):
            reached("cluster: a call has been made whose answer was lost")
        case "apply" | "beat", "gap":
            reached("cluster: Redis has lost changes that it had acknowledged")
        case "fence", "ok" if state is HostState.ASSERTING:
            reached("cluster: a host is declared lost while it lists its sessions")
        case "fence", "ok":
            reached("cluster: a host is declared lost")
        case "fence", "fenced":
            reached("cluster: two hosts declare one lost", rarely=True)
        case "fence", "heard":
            reached("cluster: a suspect was heard meanwhile")
        case "fence", "behind":
            reached("cluster: a host would declare another lost, and is itself behind")
        case "fence", "epoch":
            reached("cluster: a suspect was started anew meanwhile")
        case "reap", "ok" if answer[2] and answer[3]:
            reached("cluster: a reap ends a part of what is nobody's")
        case "reap", "ok" if not answer[2]:
            reached("cluster: a reap finds nothing, as others were faster")
        case _:
            pass


def _notice_old(call: Call, word: str) -> None:
    """Note what a call did that was given up long ago, or is made a second time."""
    match call.function, word:
        case "begin", "keep" | "reset":
            reached("cluster: a beginning that was given up happens later")
        case "fence", _:
            reached("cluster: a fence that was given up comes later", rarely=True)
        case "apply", "ok":
            reached(
                "cluster: changes that were given up are applied later", rarely=True
            )
        case "beat", "ok":
            reached("cluster: an old beat counts as a new one")
        case "reap", "ok":
            reached("cluster: a step of a reap is made once more")
        case _:
            pass


def _notice_begin(call: Call, answer: Any, host: StoredHost | None) -> None:
    word, nonce = answer[0].decode(), int(call.args[2])
    if word == "replaced":
        reached("cluster: a process waits, as a newer one has its name")
    elif word == "epoch":
        reached("cluster: an epoch is too low, as the clock was set back")
    elif word == "keep":
        reached("cluster: a process goes on where its log was published to")
    elif host is None:
        return
    elif host.state is HostState.LOST:
        reached(
            "cluster: a lost host is back before all its sessions were ended",
            rarely=True,
        )
    elif host.nonce > nonce:
        reached("cluster: an earlier process takes its name back")
    elif host.log != call.args[3]:
        reached("cluster: a host begins with another log")
    elif host.state is HostState.ASSERTING:
        reached("cluster: a list is begun again before it has ended")
    elif host.sessions > host.current:
        reached("cluster: a host lists anew before its last list's rest was ended")


Hosts = Mapping[str, StoredHost]


def notice_failover(before: Hosts, after: Hosts, lost_s: float, lease_s: float) -> None:
    """Note what a failover that lost some time did to the hosts."""
    if lost_s > lease_s:
        reached("cluster: a failover goes back by more than a lease")
    if after.keys() - before.keys():
        reached("cluster: a failover brings back a host that was reaped")
    for name, had in before.items():
        has = after.get(name)
        if has is None:
            reached("cluster: a failover loses a host")
        elif HostState.ASSERTING is had.state is has.state and had.last > has.last:
            reached("cluster: a failover loses the middle of a list")
        elif had.state is HostState.LIVE and has.state is HostState.ASSERTING:
            reached("cluster: a failover loses the end of a list")
        elif had.state is HostState.LOST and has.state is not HostState.LOST:
            reached(
                "cluster: a failover loses that a host was declared lost", rarely=True
            )
        elif had.state is not HostState.LOST and has.state is HostState.LOST:
            reached("cluster: a failover brings back that a host is lost", rarely=True)
        elif had.epoch > has.epoch:
            reached("cluster: a failover loses that a process began")

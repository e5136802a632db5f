"""Which situations the calls of a history come into, as their answers show."""

from collections.abc import Mapping
from typing import Any

from liveness.cluster.format import HostState, StoredHost
from liveness.service.outlets.cluster.session_changes import Call
from tests.simulation.situations import reached


def notice(
    call: Call, answer: Any, host: StoredHost | None, *, knows: bool, is_old: bool
) -> None:
    """Note what a call met; of a `fence`, *host* is the suspect as it was before."""
    word, args = answer[0].decode(), call.args
    state = host.state if host else None
    match call.function, word:
        case _, "late":
            reached("cluster: changes come later than their clock says")
        case _, "damaged":
            reached("cluster: another program's change of the keys is noticed")
        case "begin", "replaced":
            reached("cluster: a process waits, as a newer one has its name")
        case "begin", "epoch":
            reached("cluster: an epoch is too low, as the clock was set back")
        case "begin", _ if is_old:
            reached("cluster: a beginning that was given up happens later")
        case "begin", "keep":
            reached("cluster: a process goes on where its log was published to")
        case "begin", _ if host:
            _notice_new_list(call, host)
        case "apply" | "beat", "unknown" if knows:
            reached("cluster: a call comes after its host was reaped")
        case "apply" | "beat" | "assert", "fenced":
            reached("cluster, rarely: a host that was declared lost calls")
        case "apply" | "beat" | "assert", "epoch":
            reached("cluster: a process calls that another one has replaced")
        case "apply" | "beat", "asserting":
            reached("cluster: changes come while their host lists its sessions")
        case "apply" | "beat", "gap" if answer[1] > int(args[4]):
            reached("cluster: a call has been made whose answer was lost")
        case "apply" | "beat", "gap":
            reached("cluster: Redis has lost changes that it had acknowledged")
        case "apply", "ok" if is_old:
            reached("cluster, rarely: changes given up before are applied")
        case "assert", "live":
            reached("cluster: a piece of a list comes after the list ended")
        case "assert", "gap":
            reached("cluster, rarely: a piece of a list comes twice or too early")
        case "fence", "ok" if state is HostState.ASSERTING:
            reached("cluster: a host is declared lost while it lists its sessions")
        case "fence", "heard":
            reached("cluster: a suspect was heard meanwhile")
        case "fence", "behind":
            reached("cluster: a host would declare another lost, and is itself behind")
        case "fence", "epoch":
            reached("cluster: a suspect was started anew meanwhile")
        case "reap", "ok" if answer[2] and answer[3]:
            reached("cluster: a reap takes several steps")
        case _:
            pass


def _notice_new_list(call: Call, host: StoredHost) -> None:
    if host.state is HostState.LOST:
        reached("cluster, rarely: a lost host is back before its reap ended")
    elif host.nonce > int(call.args[2]):
        reached("cluster: an earlier process takes its name back")
    elif host.log != call.args[3]:
        reached("cluster: a host begins with another log")
    elif host.sessions > host.current:
        reached("cluster: a host lists anew before its last list's rest was ended")


def notice_failover(
    before: Mapping[str, StoredHost], after: Mapping[str, StoredHost]
) -> None:
    """Note what a failover did to the hosts."""
    if after.keys() - before.keys():
        reached("cluster: a failover brings back a host that was reaped")
    for name in before.keys() & after.keys():
        had, has = before[name], after[name]
        if HostState.ASSERTING is had.state is has.state and had.last > has.last:
            reached("cluster: a failover loses the middle of a list")
        elif had.state is HostState.LIVE and has.state is HostState.ASSERTING:
            reached("cluster: a failover loses the end of a list")
        elif had.state is HostState.LOST and has.state is not HostState.LOST:
            reached("cluster, rarely: a failover undoes that a host is lost")
        elif had.epoch > has.epoch:
            reached("cluster: a failover loses that a process began")

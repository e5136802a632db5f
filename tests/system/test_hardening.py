"""The sidecar serves within what its unit lets it do.

Without systemd as the first process its unit cannot be started here. So the same bounds
are set by other means: no capability, no new privilege, no memory that can be written and
run, a file system that can be read only but for two folders, a strict umask. What it
asks of the kernel meanwhile is traced, and held against the unit's filter.
"""

import re
import signal
import sys
from pathlib import Path

from tests.helpers.needs import as_root, needs
from tests.helpers.units import SERVICE, allowed_calls, setting
from tests.system.conftest import Start
from tests.system.sidecar import eventually

# prctl(2): MemoryDenyWriteExecute= is this, or a filter to the same effect. What was
# started by others of ours has it too.
DENY_WRITE_EXECUTE = f"""
import ctypes, mmap, os, sys
assert ctypes.CDLL(None, use_errno=True).prctl(65, 1, 0, 0, 0) == 0, ctypes.get_errno()
os.execv({sys.executable!r}, [{sys.executable!r}, "-c", '''
import mmap, os, sys
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)
except PermissionError:
    os.execvp(sys.argv[1], sys.argv[1:])
sys.exit("it may write and run")
''', *sys.argv[1:]])
"""
READ_ONLY = """
mount --bind "$0" "$0"
mount --options remount,bind,ro /
! touch /written 2>/dev/null
umask "$1"
shift
exec "$@"
"""


@as_root
@needs("strace")
@needs("mount")
@needs("systemd-analyze", "systemd")
def test_it_serves_and_asks_for_no_more_than_the_unit_allows(make: Start) -> None:
    sidecar = make(socket_group="0")
    trace = sidecar.folder / "trace"
    umask = setting(SERVICE, "UMask")
    sidecar.under = ["unshare", "--mount", "sh", "-euc", READ_ONLY]
    sidecar.under += [str(sidecar.folder), umask]
    sidecar.under += ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    sidecar.under += ["--no-new-privs", sys.executable, "-c", DENY_WRITE_EXECUTE]
    # The tracer is beside it, not above.
    sidecar.under += ["strace", "-D", "-f", "-qq", "-o", str(trace)]
    sidecar.start()
    gateway, watcher = sidecar.gateway("gw-1"), sidecar.watcher()
    gateway.send("login", "ada", {"conn": 1, "timeout": 1})
    gateway.send("after", "reminder", 0.2, {"payload": "tea"})
    kinds = {one["kind"] for one in watcher.take(3)}
    assert kinds == {"online", "timer", "offline"}
    assert "process_open_fds" in sidecar.get("/metrics")[1]
    assert sidecar.get("/readyz", admin=True)[0] == 200
    sidecar.signal(signal.SIGHUP)
    sidecar.line("settings read anew")
    assert oct(sidecar.admin.stat().st_mode)[-3:] == "660"
    assert {oct(one.stat().st_mode)[-2:] for one in sidecar.state.iterdir()} == {"00"}
    status = Path(f"/proc/{sidecar.pid}/status").read_text()
    assert re.search(r"^CapEff:\s+0+$", status, re.M)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.M)
    assert sidecar.stop() == 0
    eventually(lambda: "exit_group(0" in trace.read_text())
    used = {*re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.M)}
    assert {"accept4", "chown", "bind", "execve", "prlimit64"} <= used
    assert used - allowed_calls() == set()
    families = {*re.findall(r"socket\((AF_\w+)", trace.read_text())}
    assert families <= {*setting(SERVICE, "RestrictAddressFamilies").split()}

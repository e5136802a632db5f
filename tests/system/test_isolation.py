"""The settings of a sidecar that is installed on this host do not reach the tests."""

import os
import sys
from pathlib import Path

from liveness.config.sources import DEFAULT_FILE, FILE_VARIABLE
from tests.helpers.needs import as_root, needs
from tests.helpers.processes import ran
from tests.system.conftest import Start

# In a namespace of its own, a host whose file of settings is wrong.
WITH_A_WRONG_FILE = """
mount -t overlay overlay -o lowerdir="$0:/etc" /etc
exec "$@"
"""


@as_root
@needs("mount")
def test_what_the_tests_start_reads_no_settings_of_this_host(
    make: Start, tmp_path: Path
) -> None:
    file = tmp_path / DEFAULT_FILE.relative_to("/etc")
    file.parent.mkdir()
    file.write_text("timeout_s = 'wrong'\n")
    here = ["unshare", "--mount", "sh", "-euc", WITH_A_WRONG_FILE, str(tmp_path)]
    check = [*here, sys.executable, "-m", "liveness", "check-config"]
    without = {name: it for name, it in os.environ.items() if name != FILE_VARIABLE}
    refused = ran(*check, env=without)
    assert refused.returncode == 78
    assert str(DEFAULT_FILE) in refused.stderr

    checked = ran(*check)
    assert checked.returncode == 0, checked.stderr
    sidecar = make()
    sidecar.under = here
    sidecar.start()

"""`python -m tests.machine [--changed | ARGUMENT OF PYTEST…]`: see `gate`."""

import sys

from tests.machine.gate import main

sys.exit(main(sys.argv[1:]))

"""`python -m tests.mutants [NAME…]`: see `runner`."""

import sys
from functools import partial
from pathlib import Path

import trio

from tests.mutants.runner import run

sys.exit(trio.run(partial(run, Path(__file__).parents[2], sys.argv[1:])))

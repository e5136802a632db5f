"""`python -m tests.mutants [NAME… | --changed]`: see `runner`."""

import sys
from functools import partial
from pathlib import Path

import trio

from tests.mutants.runner import concerned, run

root, names = Path(__file__).parents[2], sys.argv[1:]
if names == ["--changed"]:
    names = concerned(root)
sys.exit(trio.run(partial(run, root, names)))

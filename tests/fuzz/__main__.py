"""`python -m tests.fuzz`: see `runner`."""

import sys

from tests.fuzz.runner import main

sys.exit(main())

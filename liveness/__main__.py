"""`python -m liveness`."""

import sys

from liveness.cli import main

if __name__ == "__main__":
    sys.exit(main())

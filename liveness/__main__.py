"""`python -m liveness`, and the command `liveness`.

A gateway that installs only the client library gets the command too, but not the packages
that it needs. Then the command says which package is missing.
"""

import signal
import sys


def main() -> int | str:
    """Run the command line.

    Returns:
        Its exit code, or the one line that `sys.exit` prints before it exits with 1.
    """
    if sys.argv[1:2] == ["serve"]:
        # A SIGHUP would end a starting sidecar; `liveness.service.app` unblocks it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        from liveness.cli.main import main

        return main()
    except KeyboardInterrupt:  # while importing; `liveness.cli.main` handles later ones
        return 130  # as a shell reports SIGINT
    except ModuleNotFoundError as error:
        missing = (error.name or "liveness").partition(".")[0]
        if missing == "liveness" or missing in sys.stdlib_module_names:
            raise  # a bug of ours, or a broken Python
        return (
            f"liveness: the sidecar's packages are not installed (no module {missing}); "
            "in the clone or unpacked sdist: pip install '.[sidecar]'"
        )


if __name__ == "__main__":
    sys.exit(main())

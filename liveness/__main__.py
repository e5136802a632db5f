"""`python -m liveness`, and the console's `liveness`.

A gateway's environment has what the client library needs, and the package's command
with it, but not what that needs: then it says so.
"""

import signal
import sys


def main() -> int | str:
    """Runs the command line.

    Returns:
        Its exit code, or the one line that `sys.exit` is to tell, with 1.
    """
    if sys.argv[1:2] == ["serve"]:
        # It would end a sidecar that is still starting; `liveness.service.app` takes it later.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        from liveness.cli.main import main

        return main()
    except KeyboardInterrupt:  # amid the imports; later ones are for `cli`
        return 130  # as a shell reports SIGINT
    except ModuleNotFoundError as error:
        missing = (error.name or "liveness").partition(".")[0]
        if missing == "liveness" or missing in sys.stdlib_module_names:
            raise  # a fault of ours, or of this Python
        return (
            f"liveness: the sidecar's packages are not installed (no module {missing}); "
            "in the clone or unpacked sdist: pip install '.[sidecar]'"
        )


if __name__ == "__main__":
    sys.exit(main())

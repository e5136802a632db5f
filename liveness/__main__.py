"""`python -m liveness`, and the command `liveness`.

A gateway that installs only the client library gets the command without the packages that
it needs. Then the command names the missing package.
"""

import signal
import sys


def main() -> int | str:
    """Run the command line.

    Returns:
        Its exit code, or the one line that `sys.exit` prints before it exits with 1.
    """
    serves = sys.argv[1:2] == ["serve"]
    if serves:
        # A SIGHUP would end a starting sidecar; `liveness.service.app` unblocks it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        from liveness.console.terminal import prepare_streams

        prepare_streams()
        if serves:
            from liveness.service.common import logs

            logs.configure("auto", "warning")  # `serve` does it again by its settings
            logs.log_uncaught()
        from liveness.cli.main import main

        return main()
    except KeyboardInterrupt:  # while importing; `liveness.cli.main` handles later ones
        return 130  # as a shell reports SIGINT
    except ModuleNotFoundError as error:
        missing = (error.name or "liveness").partition(".")[0]
        if missing == "liveness" or missing in sys.stdlib_module_names:
            raise  # a bug of ours, or a broken Python
        return (
            f"liveness: the sidecar's packages are not installed (no module {missing}): "
            "pip install 'liveness-sidecar[sidecar]'"
        )


if __name__ == "__main__":
    sys.exit(main())

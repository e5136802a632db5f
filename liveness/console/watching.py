"""Turns errors of reading records into one line that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from liveness.client.dialer import LinkLost
from liveness.console.admin_client import CommandError, not_a_sidecar, unreachable
from liveness.errors import Refused, ReportError, WireError


@contextmanager
def command_errors(path: Path) -> Iterator[None]:
    """Turn what a strict `liveness.watch` of the socket *path* raises into a CommandError."""
    try:
        yield
    except OSError as error:
        raise unreachable(path, error) from None
    except WireError:
        raise not_a_sidecar(path) from None
    except LinkLost as lost:
        raise CommandError(f"{path}: {lost}; see the sidecar's log") from None
    except Refused as refused:
        raise CommandError(f"{path}: it says {refused}; see its log") from None
    except ReportError as mistake:
        raise CommandError(f"--{mistake}") from None  # only `after` can be wrong

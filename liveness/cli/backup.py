"""`liveness backup`: the whole state in one file, while the sidecar runs or is down.

The file is a tar archive: restoring it takes nothing but tar. For each database it also
holds an empty WAL. Unpacked over an older state, that replaces the older WAL, which
SQLite would apply to the restored database.

The clocks that a planned stop saves are left out. No sidecar read events between the
backup and the start of the restored state, so all users get a fresh timeout.
"""

import io
import os
import secrets
import shutil
import signal
import sqlite3
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

from cyclopts import Parameter

from liveness.cli.options import BACKGROUND, State, declared, file_at
from liveness.config.sources import state_folder
from liveness.console.admin_client import CommandError
from liveness.errors import StateError
from liveness.service.backups.snapshots import (
    STEP_BYTES,
    StateCopy,
    opened,
    sync,
)
from liveness.service.common.clock import Clock
from liveness.service.storage.log_store import DATABASE
from liveness.service.storage.private_folders import sync_folder

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# The disk must hold the copies and the archive, each as large as the state, and what the
# sidecar writes during the backup.
ROOM: Final = 2
SPARE_BYTES: Final = 64 * 2**20
# The exit code after a signal is this plus the signal's number, as shells report it.
ENDED: Final = 128

_DAMAGE: Final = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
)


def backup(state: Path, file: Path, *, force: bool, out: TextIO) -> None:
    """Writes the state to a new file.

    Args:
        state: The state directory.
        file: Appears complete, or not at all.
        force: Whether to replace an existing file.
        out: Gets a line that says what was written.
    Raises:
        CommandError: The state cannot be read, or *file* cannot be written or belongs to
            a state. Nothing is left behind.
        StateError: The state is damaged, or of a newer version.
    """
    with _as_command_errors(state, file):
        _check_target(file, force=force)
        with opened(state) as files, _folder_beside(file) as folder:
            _check_room(files, file)
            archive = folder / "archive"
            _write(files, folder, archive)
            size = archive.stat().st_size
            _check_target(file, force=force)
            archive.replace(file)
        sync_folder(file.parent)
    out.write(
        f"backed up {state} to {file} ({size / 1e6:,.1f} MB): records up to "
        f"{files.newest:,}\n"
    )


def _check_target(file: Path, *, force: bool) -> None:
    if not file.parent.is_dir():
        raise CommandError(
            f"{file.parent} is not a folder; make it, or name another FILE"
        )
    if any((path.parent / DATABASE).exists() for path in (file, file.resolve())):
        raise CommandError(
            f"{file} is in a state directory, with which it would be lost; name a FILE "
            "elsewhere"
        )
    if (file.is_symlink() or file.exists()) and not file.is_file():
        raise CommandError(f"{file} exists and is not a file; name another FILE")
    if file.exists() and not force:
        raise CommandError(f"{file} already exists; name another FILE, or give --force")


def _check_room(state: StateCopy, file: Path) -> None:
    """Refuses if the backup could fill the disk, which the sidecar may use too."""
    needed = ROOM * state.bytes + SPARE_BYTES
    free = shutil.disk_usage(file.parent).free
    if free < needed:
        raise CommandError(
            f"{file.parent} has {free / 1e6:,.0f} MB free, and making a backup takes "
            f"{needed / 1e6:,.0f} MB; make room, or name a FILE elsewhere"
        )


@contextmanager
def _as_command_errors(state: Path, file: Path) -> Iterator[None]:
    """Turns errors of SQLite and the file system into those that `backup` documents."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _DAMAGE:
            raise StateError(
                f"{state} cannot be read ({error}); no backup was made: keep the "
                "previous one, and restore it if the sidecar cannot start"
            ) from error
        raise CommandError(
            f"{state} could not be copied to {file}: {error}; no file is left behind: "
            "make room or repair the disk"
        ) from error
    except OSError as error:
        remedy = "no file is left behind: make room, or name a FILE elsewhere"
        if isinstance(error, PermissionError):
            file = error.filename or file
            remedy = (
                "run this as the sidecar's user, and name a FILE in a folder where it may "
                "write"
            )
        raise CommandError(f"{file}: {error.strerror}; {remedy}") from error


@contextmanager
def _folder_beside(file: Path) -> Iterator[Path]:
    """A private folder on the disk of *file*, removed at the end, also by a signal.

    A signal that is ignored stays ignored (`nohup`).
    """

    def end(number: int, _frame: object) -> None:
        sys.exit(ENDED + number)

    def handle(
        handler: "signal._HANDLER", *numbers: int
    ) -> dict[int, "signal._HANDLER"]:
        taken = (it for it in numbers if signal.getsignal(it) is not signal.SIG_IGN)
        return {number: signal.signal(number, handler) for number in taken}

    folder = file.parent / f".{file.name}.{secrets.token_hex(8)}"
    before = handle(end, signal.SIGTERM, signal.SIGHUP)
    try:
        folder.mkdir(0o700)
        yield folder
    finally:
        # A second signal must not interrupt this.
        before = handle(signal.SIG_IGN, signal.SIGINT, *before) | before
        if folder.exists():
            shutil.rmtree(folder)
        for number, handler in before.items():
            signal.signal(number, handler)


def _write(state: StateCopy, folder: Path, archive: Path) -> None:
    made_ms = Clock().wall_ms()
    # All databases before the archive: until they are copied, the sidecar's WALs grow.
    for path in state.paths:
        state.copy(path, folder / path.name, made_ms=made_ms)
    with _PacedFile(io.FileIO(archive, "x")) as paced:
        archive.chmod(0o600)
        with tarfile.open(mode="w|", fileobj=paced, bufsize=STEP_BYTES) as tar:
            for path in state.paths:
                _add(tar, folder / path.name, path)


class _PacedFile(io.BufferedWriter):
    """A file that is synced after each write, with a pause for others on that disk."""

    def write(self, data: "ReadableBuffer") -> int:
        count = super().write(data)
        self.flush()
        sync(self.fileno())
        return count


def _add(tar: tarfile.TarFile, copy: Path, original: Path) -> None:
    """Adds a copy with the owner of the original, and an empty WAL; removes the copy."""
    info = tar.gettarinfo(original, original.name)
    info.mode, info.size, info.mtime = 0o600, copy.stat().st_size, copy.stat().st_mtime
    with copy.open("rb") as opened:
        tar.addfile(info, opened)
    copy.unlink()
    info.name, info.size = f"{original.name}-wal", 0
    tar.addfile(info)


command: Final = declared("backup", "backup state.tar")


@command.default
def back_up(
    file: Annotated[
        str,
        Parameter(help="the tar archive to make", metavar="FILE", converter=file_at),
    ],
    /,
    *,
    state: State = None,
    force: Annotated[bool, Parameter(help="replace FILE if it is there")] = False,
) -> None:
    """Copy the whole state into one file, while the sidecar runs or is down."""
    os.nice(BACKGROUND)
    backup(state_folder(state), Path(file), force=force, out=sys.stdout)

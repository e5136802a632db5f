"""Reads the value of a client setting from its file."""

from pathlib import Path

from liveness.config.secret_file import SecretFile


def value_in(place: str, path: Path) -> str:
    """The value in a file.

    Args:
        place: The setting that names it, for errors.
        path: The file.
    Raises:
        StartError: It cannot be read, or has no value.
    """
    file = SecretFile(place, path, "value")
    try:
        text = file.read().decode().strip()
    except UnicodeDecodeError:
        raise file.refused("is not UTF-8; put only the value there") from None
    if not text or "\0" in text:
        raise file.refused("has no value; put it there")
    return text

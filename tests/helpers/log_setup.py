"""The logging of this process, as a test found it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from liveness.service.common import logs


@contextmanager
def log_setup_restored() -> Iterator[None]:
    """Undo `logs.configure` in the end, after the lines that wait are written."""
    handlers, level = logging.root.handlers, logging.root.level
    yield
    structlog.reset_defaults()
    logs.drain()
    for handler in logging.root.handlers:
        if handler not in handlers:
            handler.close()
    logging.root.handlers = handlers
    logging.root.setLevel(level)

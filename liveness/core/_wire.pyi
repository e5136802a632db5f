"""The receiving end of a stream, compiled; its reference says what it does."""

from liveness.core.wire import Reader as Reader

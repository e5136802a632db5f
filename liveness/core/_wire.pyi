"""The receiving end of a stream, compiled; its reference says what it does."""

from liveness.core.framing import Reader as Reader

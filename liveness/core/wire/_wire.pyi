"""The reader of frames, compiled; `framing.Reader` documents it."""

from liveness.core.wire.framing import Reader as Reader

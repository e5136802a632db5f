"""The reader of frames, compiled; `framing.Reader` documents it."""

from liveness.core.framing import Reader as Reader

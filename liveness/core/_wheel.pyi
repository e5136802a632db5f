"""The wheel, compiled; its reference says what it does."""

from typing import Final

from liveness.core.wheel import Wheel as Wheel

IMPLEMENTATION: Final = "compiled"

"""The wheel, compiled; its reference says what it does."""

from liveness.core.wheel import Wheel as Wheel

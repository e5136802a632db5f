"""The wheel, compiled; `wheel.Wheel` documents it."""

from liveness.core.wheel.wheel import Wheel as Wheel

"""The line with which a sidecar starts."""

import os
from pathlib import Path
from typing import Any

from liveness import __version__
from liveness.config.compiled import WHEEL
from liveness.config.settings import Config, SocketSettings, StateSettings
from liveness.service.app import log_start


def test_a_start_is_logged_with_numbers_and_places(said: list[Any]) -> None:
    log_start(
        Config(
            timeout_s=9,
            socket=SocketSettings(path=Path("/run/gateway.sock")),
            state=StateSettings(dir=Path("/var/lib/liveness")),
        )
    )
    assert said[0] == {
        "event": "starting", "log_level": "info", "version": __version__,
        "wheel": WHEEL, "pid": os.getpid(), "unix_user": os.geteuid(), "timeout_s": 9,
        "slots": 30, "flush_s": 0.3, "socket": "/run/gateway.sock",
        "state": "/var/lib/liveness", "http": "127.0.0.1:9874", "has_token": False,
    }  # fmt: skip

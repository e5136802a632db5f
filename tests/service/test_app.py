"""The line with which a sidecar starts."""

import json
import os
from pathlib import Path
from typing import Any

from liveness import __version__
from liveness.config.compiled import WHEEL
from liveness.config.settings import Config, HttpSettings, SocketSettings, StateSettings
from liveness.service.app import log_start

# What `liveness.service.common.logs` adds to every line.
ADDED = ', "level": "info", "timestamp": "2026-11-25T19:19:00.713517Z"\n'


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


def test_the_longest_start_line_takes_at_most_a_kilobyte(said: list[Any]) -> None:
    log_start(
        Config(
            timeout_s=86_399.999_999,
            slots=3_600,
            flush_s=9.999_999,
            socket=SocketSettings(path=Path("/" + "é" * 50)),
            state=StateSettings(dir=Path("/" + "\U0001f600/" * 1_000)),
            http=HttpSettings(address="a" * 250 + ":65535", token_file=Path("/t")),
        )
    )
    del said[0]["log_level"]
    assert 900 < len(json.dumps(said[0]) + ADDED) <= 1_024

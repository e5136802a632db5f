"""Settings that are wrong when a running sidecar reads them anew."""

import os
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from liveness.config.sources import load
from liveness.service.reload import Reloader
from tests.service.rig import Rig

WRONG: Final = (
    "the settings are wrong, and nothing was changed; correct them, and reload again"
)
HOME: Final = {"XDG_RUNTIME_DIR": "/run/user/7", "HOME": "/home/7"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("slots = 1", "slots is 1 ("),
        ('[access]\nadmin = "no-such-user"', "access.admin names the user"),
        (" \n", "it is empty, "),
    ],
    ids=["setting", "user", "empty"],
)
async def test_wrong_settings_are_told_and_change_nothing(
    rig: Rig, tmp_path: Path, said: list[Any], text: str, told: str
) -> None:
    file = tmp_path / "liveness.toml"
    read = partial(load, file=file, environ=HOME, unix_user=7, is_reload=True)
    reloader = Reloader(rig.sidecar.config, read, rig.sidecar, group=os.getegid())
    file.write_text('[access]\nwatchers = "own"')
    await reloader.reload()
    access = rig.registry.access
    file.write_text(text)
    await reloader.reload()
    assert (said[-1]["event"], said[-1]["log_level"]) == (WRONG, "error")
    assert told in said[-1]["error"]
    assert rig.registry.access is access

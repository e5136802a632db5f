"""What a service manager says it hands over, when it cannot be so."""

import os
from pathlib import Path

import pytest

from liveness.errors import StartError
from liveness.service.sockets import listening


@pytest.mark.parametrize("count", ["two", "", "-1", "1\n2"])
def test_a_count_of_sockets_that_is_no_number_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", count)
    monkeypatch.setenv("LISTEN_FDNAMES", "gateway")
    path = tmp_path / "gateway.sock"
    with pytest.raises(StartError) as caught, listening(path, name="gateway"):
        pass
    assert str(caught.value) == (
        f"LISTEN_FDS={count!r} is no number of sockets: unset it, or let the service "
        "manager set it"
    )
    assert len(str(caught.value).splitlines()) == 1
    assert not path.exists()

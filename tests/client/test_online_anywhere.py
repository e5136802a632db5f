"""Users online on any host, while those of other hosts are not known."""

from pathlib import Path

import pytest
import trio

import liveness
from liveness.client.watcher import Watch
from tests.helpers.peer import Link, listening


async def answer(link: Link, uid: str, host: str, partial: str) -> None:
    """Answers the next question by a session of one user, without the other hosts."""
    await link.next("where")
    row = [uid, "gw", 1, 5, host, None]
    await link.send(["where", [row], {"cluster": True, "partial": partial}])


async def test_a_user_is_not_called_offline_while_other_hosts_are_not_known(
    tmp_path: Path,
) -> None:
    async with (
        listening(tmp_path / "s") as peer,
        Watch(str(peer.path)) as watch,
        trio.open_nursery() as nursery,
    ):

        async def serve() -> None:
            link = await peer.link(features=["cluster"])
            while True:
                await answer(link, "ada", "a", "away")

        nursery.start_soon(serve)
        assert await watch.online("ada", anywhere=True) == {"ada"}
        with pytest.raises(liveness.ReportError, match=r"not known now \(away\)"):
            await watch.online(["ada", "bob"], anywhere=True)
        found = await watch.anywhere(["ada", "bob"])
        assert [row.host for row in found] == ["a"]
        assert found.partial == "away"
        nursery.cancel_scope.cancel()

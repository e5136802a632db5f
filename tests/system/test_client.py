"""`liveness.connect` with a sidecar that is a real process; its rules: `tests/client`."""

from typing import Final

import anyio
import pytest

import liveness
from tests.system.sidecar import Sidecar

BOUND_S: Final = 300.0  # of a whole test


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_watcher_sees_what_was_reported_and_the_gateway_the_silences(
    quick: Sidecar, name: str, backend: str
) -> None:
    watcher = quick.watcher()
    ends = []

    async def main() -> None:
        with anyio.fail_after(BOUND_S):
            async with liveness.connect(quick.socket, name=name) as client:
                client.login(f"{name}:message", conn=0)
                client.login(f"{name}:keepalive", conn=1)
                client.login(7, conn=10)
                await client.flush()
                client.message(f"{name}:message", conn=0)
                client.keepalive(f"{name}:keepalive", conn=1)
                client.logout(7, conn=10)
                async for end in client.ended():
                    ends.append((end.uid, end.conn, end.reason))
                    if len(ends) == 2:
                        break

    anyio.run(main, backend=backend)
    watcher.until(lambda records: sum("last" in record for record in records) == 3)
    seen = [
        (record["uid"], record["kind"], record["reason"], record["conn"])
        for record in watcher.records
    ]
    for conn, last in enumerate(["message", "keepalive"]):
        uid = f"{name}:{last}"
        assert (uid, conn, "silence") in ends
        assert (uid, "online", "login", conn) in seen
        assert (uid, "offline", "silence", conn) in seen
        assert {
            r["last"] for r in watcher.records if r["uid"] == uid and "last" in r
        } == {last}
    assert seen.index((7, "online", "login", 10)) < seen.index(
        (7, "offline", "logout", 10)
    )

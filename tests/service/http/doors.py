"""The HTTP doors of a service on virtual time, asked without a server."""

import json
from typing import Any
from urllib.parse import urlencode

from liveness.metrics.counts import DOORS, HttpRefusal
from liveness.service.http.bearer import Token
from tests.service.http.asgi import Answer, ask
from tests.service.rig import Rig


class Doors:
    """The pages of each door behind its gate, and what the gates have refused.

    Args:
        rig: The service.
        token: Closes the TCP door.
    """

    def __init__(self, rig: Rig, token: Token | None = None) -> None:
        self.rig = rig
        self.refused: list[HttpRefusal] = []
        rig.sidecar.http.token = token
        gate = rig.sidecar.http.app
        self._gates = {door: gate(door, self.refused.append) for door in DOORS}

    async def ask(
        self, door: str, method: str, target: str, body: bytes = b"", **headers: str
    ) -> Answer:
        return await ask(
            self._gates[door], method, target, pieces=[body], headers=headers
        )

    async def get(self, target: str, door: str = "http", **headers: str) -> Answer:
        return await self.ask(door, "GET", target, b"", **headers)

    async def listed(self, path: str, door: str = "http", **query: str) -> Any:
        """The items of a listing that fits into one page."""
        answer = await self.get(f"{path}?{urlencode(query)}", door)
        assert answer.status == 200, answer.body
        (shown, *following) = json.loads(answer.body).values()
        assert following == [None]
        return shown

    async def change(self, path: str, **body: object) -> tuple[int, dict[str, Any]]:
        """The status and the answer of a change at the admin socket."""
        answer = await self.ask("admin", "POST", path, json.dumps(body).encode())
        return answer.status, json.loads(answer.body)

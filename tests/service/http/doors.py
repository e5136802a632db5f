"""The HTTP doors of a service on virtual time, asked without a server.

Whatever they answer has the shape that the OpenAPI document says.
"""

import json
import re
from typing import Any, Final
from urllib.parse import urlencode

import jsonschema

from liveness.metrics.counts import DOORS, HttpRefusal
from liveness.service.http.bearer import Token
from liveness.service.http.http_server import PAGE
from tests.service.http.asgi import Answer, ask
from tests.service.rig import Rig

DOCUMENT: Final[dict[str, Any]] = json.loads((PAGE / "openapi.json").read_text())


def validate(value: object, schema: dict[str, Any]) -> None:
    whole = {**schema, "components": DOCUMENT["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def validate_answer(method: str, target: str, answer: Answer) -> None:
    """What is not in the document has no shape, nor what is no JSON."""
    path = re.sub(r"^/v1/users/.*", "/v1/users/{uid}", target.partition("?")[0])
    operation = DOCUMENT["paths"].get(path, {}).get(method.lower())
    if operation is None or answer.headers["content-type"] != "application/json":
        return
    response = operation["responses"][str(answer.status)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].split("/")[-1]]
    validate(json.loads(answer.body), response["content"]["application/json"]["schema"])


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
        gate = self._gates[door]
        answer = await ask(gate, method, target, pieces=[body], headers=headers)
        validate_answer(method, target, answer)
        return answer

    async def get(self, target: str, door: str = "http", **headers: str) -> Answer:
        return await self.ask(door, "GET", target, b"", **headers)

    async def listed(self, path: str, door: str = "http", **query: str) -> Any:
        """The items of a listing that fits into one page."""
        answer = await self.get(f"{path}?{urlencode(query)}", door)
        assert answer.status == 200, answer.body
        (shown, *following) = json.loads(answer.body).values()
        assert following == [None]
        return shown

    async def pages(self, path: str, cursor: str, **query: str) -> list[Any]:
        """The items of each page of a listing; *cursor* names what asks for the next."""
        found = list[Any]()
        while not found or cursor in query:
            answer = await self.get(f"{path}?{urlencode(query)}")
            items, following = json.loads(answer.body).values()
            found.append(items)
            query = {**query, cursor: following} if following else {}
        return found

    async def change(self, path: str, **body: object) -> tuple[int, dict[str, Any]]:
        """The status and the answer of a change at the admin socket."""
        asked = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]
        answer = await self.ask("admin", "POST", path, json.dumps(body).encode())
        if answer.status == 200:
            validate(body, asked["application/json"]["schema"])
        return answer.status, json.loads(answer.body)

"""The one way to a server, on which no effect is forgotten."""

from abc import ABC, abstractmethod

from liveness.core.effects import Effect
from liveness.core.server import Server


class Shell(ABC):
    """Calls a server, and carries out its effects.

        with shell as server:
            server.forget(role, name)

    The effects are carried out at the end of the block, in order. Blocks may be nested:
    to carry out `ReadFirst`, for one, a shell calls the server again.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._effects = server.effects

    def __enter__(self) -> Server:
        return self._server

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        effects = self._effects
        while effects:
            self._carry_out(effects.popleft())

    @abstractmethod
    def _carry_out(self, effect: Effect) -> None:
        """Do what an effect says."""

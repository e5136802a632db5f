"""redis-server as a process."""

from pathlib import Path

from liveness.lab.bench.program import Program
from liveness.lab.common.redis_link import RedisLink


class RedisServer(Program):
    """A redis-server without a disk, on a Unix socket; *options* are further ones."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket = folder / "redis.sock"
        words = ["redis-server", "--port", "0", "--unixsocket", str(self.socket)]
        words += ["--dir", str(folder), "--save", "", "--appendonly", "no", *options]
        super().__init__(folder, words)

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with RedisLink(self.socket) as link:
                link("PING")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

"""An `admin.sock` that answers as a test has it, for the commands that ask one."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path


class Admin(socketserver.ThreadingUnixStreamServer):
    """Status and body of each page, and the requests.

    Args:
        folder: Where the socket is.
        pages: By what follows the host, with the query.
    """

    def __init__(self, folder: Path, pages: dict[str, tuple[int, bytes]]) -> None:
        self.pages = pages
        self.asked: list[tuple[str, bytes]] = []
        super().__init__(str(folder / "admin.sock"), _Page)


class _Page(BaseHTTPRequestHandler):
    server: Admin

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.server.asked.append((self.path, self.rfile.read(length)))
        code, body = self.server.pages[self.path]
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def address_string(self) -> str:
        return "-"  # a Unix socket's client has none

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: a test's output is its failures."""


@contextmanager
def answering(folder: Path, pages: dict[str, tuple[int, bytes]]) -> Iterator[Admin]:
    with Admin(folder, pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()

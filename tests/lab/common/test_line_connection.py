"""The connection of users, on real sockets."""

import trio

from liveness.lab.common.line_connection import MOST_LINE, LineConnection


async def test_lines_are_put_together_and_what_is_no_object_is_left_out() -> None:
    (theirs,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = theirs.socket.getsockname()[1]
    ours = LineConnection(await trio.open_tcp_stream("127.0.0.1", port))
    async with theirs, await theirs.accept() as stream:
        received = list[object]()
        for data in (b'{"a": 1}\n{"b"', b": 2}\n[3]\n\xff\n", b"x" * 2 * MOST_LINE):
            await stream.send_all(data)
            received += await ours.receive() or []
        await stream.send_all(b'\n{"d": 4}\n')
        await stream.send_eof()
        while (lines := await ours.receive()) is not None:
            received += lines
        await ours.close()
    assert received == [{"a": 1}, {"b": 2}, {"d": 4}]

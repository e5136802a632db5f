"""The connection of users, on real sockets."""

import trio

from liveness.lab.common.line_connection import MOST_LINE, LineConnection


async def test_lines_are_put_together_and_what_is_no_object_is_left_out() -> None:
    (theirs,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = theirs.socket.getsockname()[1]
    ours = LineConnection(await trio.open_tcp_stream("127.0.0.1", port))
    stream = await theirs.accept()
    await ours.send({"login": "zoë"}, {"ping": 1})
    assert await stream.receive_some() == '{"login": "zoë"}\n{"ping": 1}\n'.encode()
    received = list[object]()
    for data in (b'{"a": 1}\n{"b"', b': 2}\n[3]\n\xff\n7\n{"c": 3}\n'):
        await stream.send_all(data)
        received += await ours.receive() or []
    assert received == [{"a": 1}, {"b": 2}, {"c": 3}]
    await stream.send_all(b"x" * 2 * MOST_LINE + b'\n{"d": 4}\n')
    await stream.aclose()
    rest = list[object]()
    while (lines := await ours.receive()) is not None:
        rest += lines
    assert rest == [{"d": 4}]
    await ours.send({"ping": 1})
    await ours.close()
    assert await ours.receive() is None
    await theirs.aclose()

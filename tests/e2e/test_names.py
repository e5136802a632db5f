"""How many names a sidecar keeps a cursor for."""

from tests.e2e.conftest import Start


def test_a_new_name_beyond_the_limit_is_refused_and_known_ones_are_not(
    start: Start,
) -> None:
    sidecar = start(limits_max_names=2)
    sidecar.gateway("first").settle()
    sidecar.watcher("first", ack=True).settle()
    third = sidecar.connect()
    third.send("hello", {"protocol": 1, "name": "second"})
    refusal = third.refusal()
    assert (refusal["code"], refusal["fatal"]) == ("overloaded", True)
    assert "limits.max_names" in refusal["message"]
    assert third.receive() is None
    sidecar.gateway("first").settle()
    # Without acks there is no cursor to keep.
    sidecar.watcher("second", ack=False).settle()

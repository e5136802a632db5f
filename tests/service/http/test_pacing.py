"""What HTTP takes of the event loop, in virtual time."""

import trio
from trio.testing import MockClock

from liveness.service.common.turnstile import Turnstile
from liveness.service.http.api import PAUSE_S, SharedPages


class Maker:
    """Makes pages, and notes when."""

    def __init__(self) -> None:
        self.made: list[tuple[str, float]] = []
        self.got: list[bytes] = []
        self.pages = SharedPages(self.make, Turnstile())

    def make(self, key: str) -> bytes:
        self.made.append((key, trio.current_time()))
        return f"{key} {len(self.made)}".encode()

    async def ask(self, key: str = "a") -> None:
        self.got.append(await self.pages.page(key))


async def test_a_page_is_made_once_for_all_waiting(autojump_clock: MockClock) -> None:
    maker, began = Maker(), trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(95):
            nursery.start_soon(maker.ask)
    assert maker.got == [b"a 1"] * 95
    assert maker.made == [("a", began)]  # and nobody waits who asks seldom


async def test_a_later_request_gets_the_next_page_after_a_pause(
    autojump_clock: MockClock,
) -> None:
    maker, began = Maker(), trio.current_time()
    await maker.ask()
    await trio.sleep(PAUSE_S / 4)
    async with trio.open_nursery() as nursery:
        for key in ("a", "a", "b"):
            nursery.start_soon(maker.ask, key)
    first, *others = maker.made
    assert first == ("a", began)
    assert {key for key, _ in others} == {"a", "b"}
    assert [round(at - began, 6) for _, at in others] == [PAUSE_S, 2 * PAUSE_S]


async def test_a_cancelled_request_delays_no_other(autojump_clock: MockClock) -> None:
    maker = Maker()
    await maker.ask()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as gone:
            gone.cancel()
            await maker.ask()
        nursery.start_soon(maker.ask)
    assert maker.got == [b"a 1", b"a 2"]
    await trio.sleep(PAUSE_S)
    await maker.ask()
    assert maker.got[2] == b"a 3"


async def test_a_turnstile_admits_one_a_pass(autojump_clock: MockClock) -> None:
    turnstile, through = Turnstile(), list[int]()
    passes = 0

    class Counting(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            nonlocal passes
            passes += 1

    async def go() -> None:
        await turnstile.wait()
        through.append(passes)

    trio.lowlevel.add_instrument(Counting())
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(go)
    assert len(set(through)) == len(through) == 20

"""A receiver, in virtual time."""

from collections.abc import AsyncIterator
from typing import Final

import pytest
from trio.testing import MockClock

from liveness.service.outlets.webhooks.sender import PostAnswer, WebhookSender
from tests.helpers.held_clock import Holds, held
from tests.service.outlets.webhooks.receiver import Receiver, receiving

# Loopback's TCP may deliver later on a busy machine.
ARRIVAL_S: Final = 0.2


@pytest.fixture
def jumping(
    jumping: MockClock, holds: Holds, monkeypatch: pytest.MonkeyPatch
) -> MockClock:
    """Virtual time that gives what a request sends a moment to arrive."""
    post = WebhookSender.post

    async def posting(
        sender: WebhookSender, webhook_id: str, body: bytes
    ) -> PostAnswer:
        with held(jumping, holds, ARRIVAL_S):
            return await post(sender, webhook_id, body)

    monkeypatch.setattr(WebhookSender, "post", posting)
    return jumping


@pytest.fixture
async def receiver(jumping: MockClock) -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver

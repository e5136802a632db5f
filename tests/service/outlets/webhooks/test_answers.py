"""The outcomes of answers."""

import pytest

from liveness.service.outlets.webhooks.answers import PostAnswer, PostOutcome

ACCEPTED = (200, 201, 202, 204, 299)
FAILED = (None, 101, 300, 301, 304, 307, 408, 425, 429, 500, 503, 599, 600)
REFUSED = (400, 401, 404, 410, 413, 422, 499)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((status, PostOutcome.ACCEPTED) for status in ACCEPTED),
        *((status, PostOutcome.FAILED) for status in FAILED),
        *((status, PostOutcome.REFUSED) for status in REFUSED),
    ],
    ids=str,
)
def test_the_status_decides(status: int | None, outcome: PostOutcome) -> None:
    assert PostAnswer(status, "", 0.0).outcome is outcome

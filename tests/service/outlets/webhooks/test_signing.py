"""Signatures that the reference of Standard Webhooks verifies."""

from pathlib import Path

import pytest
from standardwebhooks import WebhookVerificationError

from liveness.config.outlet_settings import WebhookSettings
from liveness.errors import StartError
from liveness.service.common.clock import Clock
from liveness.service.common.turnstile import Turnstile
from liveness.service.outlets.webhooks.sender import WebhookSender, secrets
from tests.service.outlets.webhooks.receiver import SECOND_SECRET, SECRET, Receiver

BODY = '[{"data":"é"}]'.encode()
URL = "https://example.com/"


def settings(path: Path, content: str, url: str = URL) -> WebhookSettings:
    path.write_text(content)
    path.chmod(0o600)
    return WebhookSettings(url=url, secret_file=path)


async def test_each_secret_of_the_file_signs(
    tmp_path: Path, receiver: Receiver
) -> None:
    both = f"{SECRET}\n\n  {SECOND_SECRET}\r\n"
    chosen = settings(tmp_path / "s", both, receiver.url)
    sender = WebhookSender("webhooks.mail", chosen, Clock(), Turnstile())
    await sender.post("m", BODY)
    sender.close()
    (request,) = receiver.received
    assert request.id == "m"
    for secret in (SECRET, SECOND_SECRET):
        request.verify(secret)
        with pytest.raises(WebhookVerificationError):
            request._replace(body=BODY + b" ").verify(secret)


def test_a_secret_needs_no_padding(tmp_path: Path) -> None:
    padded = "whsec_" + "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQQ=="
    keys = secrets("webhooks.mail", settings(tmp_path / "s", padded))
    bare = settings(tmp_path / "s", padded.rstrip("="))
    assert secrets("webhooks.mail", bare) == keys


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty; put a line there: whsec_ and 24 to 64 bytes in base64"),
        (f"{SECRET}\nwhsec_c2hvcnQ=\n", "has no secret in line 2: it must be whsec_"),
        ("whsec_#?", "has no secret in line 1"),
        ("whsec_é", "has no secret in line 1"),
    ],
    ids=["empty", "short", "not base64", "not ASCII"],
)
def test_what_is_no_secret_is_refused_and_not_shown(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "s"
    with pytest.raises(StartError) as refused:
        secrets("webhooks.mail", settings(path, content))
    assert str(refused.value).startswith(f"webhooks.mail.secret_file: {path} {said}")
    for word in content.split():
        assert word == "whsec_" or word not in str(refused.value)

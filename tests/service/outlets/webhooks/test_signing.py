"""Signatures that the reference of Standard Webhooks verifies."""

import time
from pathlib import Path

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from liveness.config.outlet_settings import WebhookSettings
from liveness.errors import StartError
from liveness.service.outlets.webhooks.signing import Signer
from tests.service.outlets.webhooks.receiver import SECOND_SECRET, SECRET

BODY = '[{"data":"é"}]'.encode()
URL = "https://example.com/"


def signer(path: Path, content: str) -> Signer:
    path.write_text(content)
    path.chmod(0o600)
    return Signer("webhooks.mail", WebhookSettings(url=URL, secret_file=path))


@pytest.mark.parametrize("secret", [SECRET, SECOND_SECRET])
def test_each_secret_of_the_file_signs(tmp_path: Path, secret: str) -> None:
    both = signer(tmp_path / "s", f"{SECRET}\n\n  {SECOND_SECRET}\r\n")
    headers = both.headers("msg_1", BODY, time.time_ns() // 1_000_000)
    Webhook(secret).verify(BODY, headers)
    assert headers["webhook-id"] == "msg_1"
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY + b" ", headers)


def test_the_secret_of_the_settings_signs() -> None:
    settings = WebhookSettings(url=URL, secret=SECRET)
    headers = Signer("webhooks.mail", settings).headers("m", BODY, 1_795_668_168_999)
    assert headers["webhook-timestamp"] == "1795668168"
    assert " " not in headers["webhook-signature"]


def test_a_secret_needs_no_padding(tmp_path: Path) -> None:
    padded = "whsec_" + "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQQ=="
    one = signer(tmp_path / "s", padded.rstrip("=")).headers("m", BODY, 0)
    assert one == signer(tmp_path / "s", padded).headers("m", BODY, 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty; put a line there: whsec_ and 24 to 64 bytes in base64"),
        (f"{SECRET}\nwhsec_c2hvcnQ=\n", "has no secret in line 2: it must be whsec_"),
        ("whsec_#?", "has no secret in line 1"),
        ("TWZLUTlyOEdLWXFyVHdqVVBEOElMUFo=", "has no secret in line 1"),
        ("whsec_" + "QUFB" * 22, "has no secret in line 1"),
        ("whsec_é", "has no secret in line 1"),
    ],
    ids=["empty", "short", "not base64", "no prefix", "long", "not ASCII"],
)
def test_what_is_no_secret_is_refused_and_not_shown(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "s"
    with pytest.raises(StartError) as refused:
        signer(path, content)
    assert str(refused.value).startswith(f"webhooks.mail.secret_file: {path} {said}")
    for word in content.split():
        assert word == "whsec_" or word not in str(refused.value)


def test_a_bad_secret_of_the_settings_is_not_shown() -> None:
    with pytest.raises(StartError, match="it is not whsec_ and 24 to 64") as refused:
        Signer("webhooks.mail", WebhookSettings(url=URL, secret="whsec_c2hvcnQ="))
    assert "c2hvcnQ" not in str(refused.value)

"""Signs requests by the Standard Webhooks spec, with each secret of the outlet."""

from collections.abc import Iterator
from datetime import UTC, datetime

from standardwebhooks import Webhook

from liveness.config.outlet_settings import SECRET_RULE, WebhookSettings, secret_key
from liveness.config.secret_file import SecretFile
from liveness.errors import StartError


class Signer:
    """The current secrets of one outlet.

    Raises:
        StartError: They cannot be read, or one is not valid. It never shows them.
    """

    def __init__(self, name: str, settings: WebhookSettings) -> None:
        self._secrets = [*_whsec_lines(name, settings)]

    def headers(self, webhook_id: str, body: bytes, now_ms: int) -> dict[str, str]:
        """The headers to send with a body.

        The id is the same at each attempt; *now_ms* is when this one begins.
        """
        at, text = datetime.fromtimestamp(now_ms // 1000, UTC), body.decode()
        signatures = (secret.sign(webhook_id, at, text) for secret in self._secrets)
        return {
            "webhook-id": webhook_id,
            "webhook-timestamp": str(now_ms // 1000),
            "webhook-signature": " ".join(signatures),
        }


def _whsec_lines(name: str, settings: WebhookSettings) -> Iterator[Webhook]:
    if settings.secret_file is None:
        secret = _secret(settings.secret)
        if secret is None:
            raise StartError(f"{name}.secret: it is not {SECRET_RULE}")
        yield secret
        return
    file = SecretFile(f"{name}.secret_file", settings.secret_file, "secret")
    lines = file.read().splitlines()
    if not any(lines):
        raise file.refused(f"is empty; put a line there: {SECRET_RULE}")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        secret = _secret(line.decode("ascii", "replace").strip())
        if secret is None:
            raise file.refused(
                f"has no secret in line {number}: it must be {SECRET_RULE}"
            )
        yield secret


def _secret(text: str) -> Webhook | None:
    try:
        return Webhook(secret_key(text))
    except ValueError:
        return None

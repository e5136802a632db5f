"""Checks the files of a webhook, as at a start, for `check-config`."""

from collections.abc import Iterator

from liveness.config.outlet_settings import WebhookSettings
from liveness.errors import StartError
from liveness.service.outlets.webhooks.sender import tls_context
from liveness.service.outlets.webhooks.signing import Signer


def check_webhook(name: str, settings: WebhookSettings) -> Iterator[StartError]:
    """Try the secrets and certificates of `[webhooks.NAME]`; yield what is wrong."""
    for use in (Signer, tls_context):
        try:
            use(f"webhooks.{name}", settings)
        except StartError as error:
            yield error

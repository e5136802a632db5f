"""`liveness check-config`: prints the settings that `serve` would use, as TOML."""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

import liveness.config.compiled  # noqa: F401  # refuses a wrong LIVENESS_PURE_WHEEL, as `serve` does
from liveness.cli.options import ConfigFile, declared
from liveness.config.settings import Config
from liveness.config.sources import load
from liveness.errors import ConfigError, StartError


def effective(config: Config) -> str:
    """Every setting with its value and source: a valid settings file.

    Comments stand in place of hidden values: complete them to use it as a file.
    """
    return "".join(f"{line}\n" for line in _lines(config))


def _lines(config: Config) -> Iterator[str]:
    for section, settings in groupby(
        config.settings(), lambda setting: setting.section
    ):
        if section:
            yield f"\n[{section}]"
        for setting in settings:
            given = setting.value_in(config)
            source = config.sources.get(setting.name, "default")
            if setting.hides(given):
                yield f"# {setting.key} is set, and not shown  # {source}"
            else:
                yield f"{setting.key} = {_toml(given)}  # {source}"
            if setting.name == "flush_s":
                yield f"# in effect: {config.flush:g} s"


def outlet_faults(config: Config) -> Iterator[StartError]:
    # Imported when one is configured, as `serve` does.
    if config.webhooks:
        from liveness.service.outlets.webhooks.sender import check_webhook

        for name, webhook in config.webhooks.items():
            yield from check_webhook(name, webhook)
    if config.kafka:
        from liveness.service.outlets.kafka.kafka_client import check_kafka

        for name, kafka in config.kafka.items():
            yield from check_kafka(name, kafka)


def _toml(value: object) -> str:
    if value is None:
        return '""'
    if isinstance(value, Mapping):
        inner = (f"{_toml(key)} = {_toml(item)}" for key, item in value.items())
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | Path):
        return str(value)
    # A JSON string is a TOML string, except that TOML wants DEL escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


command: Final = declared("check-config", "check-config --config liveness.toml")


@command.default
def show_settings(*, config: ConfigFile = None) -> None:
    """Print the settings in effect and the source of each; start nothing.

    Then try the files and client settings of outlets, and say what is wrong: so run this
    as the sidecar's user.
    """
    found = load(file=None if config is None else Path(config))
    print(effective(found), end="", flush=True)
    if found.kafka:
        from liveness.service.common import logs

        logs.configure("text", "error")  # of librdkafka: stdout has the settings
    if faults := [*map(str, outlet_faults(found))]:
        raise ConfigError(*faults)

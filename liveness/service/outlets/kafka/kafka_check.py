"""Checks the files and client settings of a Kafka outlet."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from liveness.config.outlet_settings import FILE_SUFFIX, KafkaSettings
from liveness.config.secret_file import NotReadable
from liveness.errors import StartError
from liveness.service.outlets.kafka.kafka_files import value_in

# Settings with the name of a file that librdkafka itself reads.
_LOCATION: Final = ".location"


def check_kafka(name: str, settings: KafkaSettings) -> Iterator[StartError]:
    """Try the files and client settings of `[kafka.NAME]`, for `check-config`.

    The files come first: librdkafka checks the settings only if their values can be read,
    and if confluent-kafka is installed.
    """
    faults = [*_files(f"kafka.{name}.client", settings)]
    yield from faults
    if faults or find_spec("confluent_kafka") is None:
        return
    from liveness.service.outlets.kafka.kafka_client import check_client

    try:
        check_client(name, settings)
    except StartError as error:
        yield error


def _files(place: str, settings: KafkaSettings) -> Iterator[StartError]:
    for key, value in settings.client.items():
        try:
            if key.endswith(FILE_SUFFIX):
                value_in(f"{place}.{key}", Path(str(value)))
            elif key.endswith(_LOCATION):
                _open(f"{place}.{key}", Path(str(value)))
        except StartError as error:
            yield error


def _open(place: str, path: Path) -> None:
    """Check that this user may read a file; librdkafka itself reports its other faults."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # a pipe must not block
    except PermissionError as error:
        message = f"{place}: {path} cannot be read ({error.strerror})"
        raise NotReadable(f"{message}; correct the path or its mode") from None
    except (OSError, ValueError):
        return

"""The settings of outlets: sections with names, in the settings file alone."""

import re
import tomllib
from dataclasses import MISSING
from pathlib import Path
from typing import Final

import pytest

from liveness.cli.check_config import effective, outlet_faults
from liveness.config.outlet_settings import (
    MOST_OUTLETS,
    OUTLETS,
    KafkaSettings,
    WebhookSettings,
)
from liveness.config.settings import Config, outlet_settings
from liveness.core.sessions.damping import MOST_SETTLE_S
from liveness.errors import ConfigError
from tests.config.test_settings import BARE, EXAMPLE, loaded, refused

HUNTER: Final = "hunter2"
WEBHOOK: Final = "[webhooks.mail]\nurl = 'https://a.example/x'\n"
SIGNED: Final = WEBHOOK + "secret_file = '/s'\n"
KAFKA: Final = "[kafka.bus]\nbrokers = 'b1:9092'\ntopic = 'users'\n"
# The commented outlets of the example file.
SECTIONS: Final = re.split(r"^#(?=\[)", EXAMPLE, flags=re.MULTILINE)[1:]


def webhook(toml: str, tmp_path: Path) -> WebhookSettings:
    return loaded(toml, tmp_path).webhooks["mail"]


@pytest.mark.parametrize("name", ["A", "a b", "-a", "_a", "é", "a.b", "", "a" * 33])
def test_a_name_that_metrics_cannot_have_is_refused(name: str, tmp_path: Path) -> None:
    message = refused(f"[kafka.'{name}']\n", tmp_path)
    assert message.startswith(f"{tmp_path / 'l.toml'}: [kafka.'{name}'] has no valid")


@pytest.mark.parametrize(
    ("toml", "place"),
    [
        ("[kafka]\nurl = 'hunter2'\n", "kafka: 'url'"),
        ("kafka = 'hunter2'\n", "kafka"),
        ("[[kafka]]\nurl = 'hunter2'\n", "kafka"),
        ("[[kafka.mail]]\nurl = 'hunter2'\n", "kafka: 'mail'"),
    ],
    ids=["key", "value", "list", "lists"],
)
def test_a_setting_outside_of_a_named_section_is_refused(
    toml: str, place: str, tmp_path: Path
) -> None:
    assert refused(toml, tmp_path) == (
        f"{tmp_path / 'l.toml'}: {place} is in the section of no outlet; "
        "write [kafka.NAME] on a line above its settings"
    )


def test_a_setting_without_a_default_has_to_be_there(tmp_path: Path) -> None:
    said = refused("[kafka.bus]\ntopic = 't'\n", tmp_path)
    assert said.startswith(f"{tmp_path / 'l.toml'}: [kafka.bus] has no brokers (")
    assert "; add it: it must be HOST:PORT, separated by" in said


def test_there_are_16_outlets_of_a_kind_at_most(tmp_path: Path) -> None:
    def toml(number: int) -> str:
        return "".join(KAFKA.replace("bus", f"bus{n}") for n in range(number))

    assert len(loaded(toml(MOST_OUTLETS), tmp_path).kafka) == MOST_OUTLETS
    assert refused(toml(MOST_OUTLETS + 1), tmp_path) == (
        f"{tmp_path / 'l.toml'}: there are 17 sections [kafka.NAME]; at most 16 are "
        "allowed: remove some"
    )


@pytest.mark.parametrize("name", ["WEBHOOKS_MAIL_SETTLE_S", "KAFKA_BUS_TOPIC"])
def test_an_outlet_has_no_variable(name: str) -> None:
    assert refused(environ={f"LIVENESS_{name}": HUNTER}) == (
        f"environment: there is no setting LIVENESS_{name}, as outlets are set in the "
        "settings file only; write it there, into the section of its outlet, such as "
        "[webhooks.NAME]"
    )


# By setting of [webhooks.mail] or [kafka.bus]: values that are not allowed, in TOML.
REFUSED: Final[dict[str, list[str]]] = {
    "kinds": ["''", "'login'", "'online;offline'", "3"],
    "users_only": ["1", "'true'"],
    "settle_s": ["-0.001", f"{MOST_SETTLE_S + 0.001}", "nan", "'20'", "true"],
    "begin": ["'now'", "''"],
    "url": [
        f"'https://a.example/{'a' * 2_000}'",
        *("''", "'a.example'", "'ftp://a'", "'https://'", "'https://a:0/'", "'https:/a'"),
        *("'https://a:99999/'", "'https://[::1'", "'https://a/#b'", "'https://a b/'"),
        *("'https://é.example/'", '"https://a/\\n"', "3"),
    ],
    "timeout_s": ["0.09", "301"],
    "allow_private": ["1"],
    "ca_file": ["3"],
    "brokers": ["''", "'b'", "'b:0'", "'b:1;c:2'", "'b:65536'", "','",
                f"'{','.join(['b:1'] * 1_001)}'"],
    "topic": ["''", "'.'", "'..'", "'a b'", "'é'", f"'{'t' * 250}'"],
    "client": ["3", "'a=b'"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "number"), [(key, n) for key in REFUSED for n in range(len(REFUSED[key]))]
)
def test_a_value_that_is_not_allowed_is_refused(
    key: str, number: int, tmp_path: Path
) -> None:
    is_of_kafka = key in KafkaSettings.__slots__  # without those that both have
    name, toml = ("kafka.bus", KAFKA) if is_of_kafka else ("webhooks.mail", SIGNED)
    toml = re.sub(rf"^{key} = .*\n", "", toml, flags=re.MULTILINE)
    message = refused(f"{toml}{key} = {REFUSED[key][number]}\n", tmp_path)
    assert message.startswith(f"{name}.{key} is ")
    assert f"({tmp_path / 'l.toml'}): it " in message
    assert "it must be " in message


@pytest.mark.parametrize("host", ["127.9.9.9", "[::1]:80", "LOCALHOST"])
def test_plain_http_may_lead_to_this_host(host: str, tmp_path: Path) -> None:
    toml = SIGNED.replace("https://a.example", f"http://{host}")
    assert webhook(toml, tmp_path).is_to_loopback


@pytest.mark.parametrize("host", ["a.example", "localhost.a", "[::ffff:127.0.0.1]"])
def test_plain_http_beyond_this_host_has_to_be_allowed(
    host: str, tmp_path: Path
) -> None:
    toml = SIGNED.replace("https://a.example", f"http://{host}")
    assert "it is not encrypted; use https://" in refused(toml, tmp_path)
    assert webhook(f"{toml}allow_private = true\n", tmp_path).allow_private


INLINE: Final = {
    "webhooks.mail.url": SIGNED.replace("//a", f"//ann:{HUNTER}@a"),
    "kafka.bus.brokers": KAFKA.replace("b1", f"ann:{HUNTER}@b1"),
    "kafka.bus.client": f"{KAFKA}client = 'sasl.password={HUNTER}'",
    "kafka.bus.client.sasl.password": f"{KAFKA}client.sasl.password = '{HUNTER}'",
}


@pytest.mark.parametrize("name", INLINE)
def test_a_secret_in_the_wrong_place_or_form_is_not_repeated(
    name: str, tmp_path: Path
) -> None:
    message = refused(INLINE[name], tmp_path)
    assert message.startswith(f"{name.split()[0]} ")
    assert str(tmp_path / "l.toml") in message
    assert HUNTER not in message


def test_a_secret_of_code_is_not_repeated_either() -> None:
    webhook = WebhookSettings(url=f"https://a:{HUNTER}@b/", secret_file=Path("/s"))
    with pytest.raises(ConfigError, match=r"webhooks\.a\.url is not sh") as caught:
        Config(**BARE, webhooks={"a": webhook})
    assert HUNTER not in str(caught.value)


CLIENT: Final = {
    "acks = 1": ("acks", "the outlet sets it itself"),
    "bootstrap.servers = 'a:1'": ("bootstrap.servers", "the outlet sets it itself"),
    "enable.idempotence = false": ("enable.idempotence", "the outlet sets it itself"),
    "acks_file = '/a'": ("acks_file", "the outlet sets it itself"),
    "error_cb = 'f'": ("error_cb", "the outlet sets it itself"),
    f"sasl.password = '{HUNTER}'": ("sasl.password", "name a file with it by sasl.password_"),
    "ssl.key.pem = 'hunter2'": ("ssl.key.pem", "name a file with it by ssl.key.pem_file"),
    "a.passphrase = 'hunter2'": ("a.passphrase", "it is a secret; name a file"),
    "x = ['hunter2']": ("x", "it must be a text, a number of 64 bits, true or false"),
    "x = 0x8000000000000000": ("x", "it must be a text, a number of 64 bits"),
    "sasl.password_file = 3": ("sasl.password_file", "it must be the path of a file"),
    "'a b' = 'hunter2'": ("'a b'", "it must be the name of a setting of librdkafka"),
    '"a\\nb" = "hunter2"': ("'a\\nb'", "it must be the name of a setting of librdkafka"),
}  # fmt: skip


@pytest.mark.parametrize("line", CLIENT)
def test_a_client_setting_that_breaks_a_promise_is_refused(
    line: str, tmp_path: Path
) -> None:
    key, why = CLIENT[line]
    message = refused(f"{KAFKA}[kafka.bus.client]\n{line}\n", tmp_path)
    assert message.startswith(f"kafka.bus.client.{key} ({tmp_path / 'l.toml'}): ")
    assert why in message
    assert HUNTER not in message


def test_a_client_setting_is_there_once(tmp_path: Path) -> None:
    message = refused(
        f"{KAFKA}[kafka.bus.client]\nlinger.ms = 1\n'linger.ms' = 2", tmp_path
    )
    assert message.endswith(": it has 'linger.ms' twice")


def test_check_config_prints_a_file_of_the_same_outlets(tmp_path: Path) -> None:
    toml = (
        f"{SIGNED}{KAFKA}[kafka.bus.client]\n"
        "client.id = 'a \"b\" \\\\ é'\nlinger.ms = 5.5\nx.enable = false\n"
    )
    found = loaded(toml, tmp_path)
    assert loaded(effective(found), tmp_path) == found


def test_what_is_wrong_with_files_of_outlets_is_found(tmp_path: Path) -> None:
    toml = (
        f"[webhooks.mail]\nurl = 'https://a.example/'\nsecret_file = '{tmp_path}/no'\n"
        f"ca_file = '{tmp_path}/l.toml'\n[kafka.bus]\nbrokers = 'a:1'\ntopic = 't'\n"
        f"[kafka.bus.client]\n'sasl.password_file' = '{tmp_path}/no'\n"
    )
    found = [str(fault) for fault in outlet_faults(loaded(toml, tmp_path))]
    assert [text.partition(":")[0] for text in found] == [
        "webhooks.mail.secret_file",
        "webhooks.mail.ca_file",
        "kafka.bus.client.sasl.password_file",
    ]


def test_the_query_of_a_url_is_not_shown(tmp_path: Path) -> None:
    toml = SIGNED.replace("/x'", f"/x?key={HUNTER}'")
    shown = effective(loaded(toml, tmp_path))
    assert HUNTER not in shown
    assert "\n# url is set, and not shown  # " in shown
    assert "[webhooks.mail] has no url" in refused(shown, tmp_path)
    assert HUNTER not in refused(toml.replace("https:", "http:"), tmp_path)


def sections() -> dict[str, str]:
    return {re.findall(r"\w+", text)[0]: text for text in SECTIONS}


def test_the_example_has_an_outlet_of_each_kind_with_the_defaults(
    tmp_path: Path,
) -> None:
    assert sections().keys() == OUTLETS.keys()
    for section, text in sections().items():
        uncommented = re.sub(r"^#(?=[a-z_]+ = )", "", text, flags=re.MULTILINE)
        (name, table), *_ = tomllib.loads(uncommented)[section].items()
        assert {*table} == {setting.key for setting in outlet_settings(section, name)}
        config = loaded(uncommented, tmp_path)
        for setting in outlet_settings(section, name):
            # Without these there is no outlet.
            if setting.default is not MISSING:
                assert setting.value_in(config) == setting.default, setting.name

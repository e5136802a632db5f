"""The documents are a contract: they name what exists, nothing else, and all of it.

Names are taken from the product: the settings' one definition, the metrics' collector,
the command line's own help. What the documents show to work is run in
`tests/e2e/test_documents.py`.
"""

import json
import re
from collections.abc import Callable
from dataclasses import MISSING, replace
from typing import Any, Final

import jsonschema
import pytest
from cyclopts import App

from liveness import cli
from liveness.build import PURE_WHEEL
from liveness.config import SETTINGS, Setting
from liveness.metrics import Collector, Counts, HttpRefusal
from liveness.sources import FILE_VARIABLE
from tests.documents import (
    INDEX,
    MANUAL,
    ROOT,
    WHOLE,
    anchors,
    blocks,
    inline,
    links,
    rows,
    section,
)
from tests.service.test_metrics import NOW, gateways

GROUPS: Final = {"timers": cli.timers, "gateways": cli.gateways, "guard": cli.guard}
# Every command, as one would type it.
SHOWN: Final = blocks("docs/command-line.md", "sh")[0].splitlines()

Help = Callable[[str], str]


@pytest.fixture
def help_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Help:
    monkeypatch.setenv("COLUMNS", "200")

    def text(command: str) -> str:
        assert cli.main([*command.split(), "--help"]) == 0
        return capsys.readouterr().out

    return text


# --- pages ----------------------------------------------------------------------------


def test_the_readme_is_one_page() -> None:
    text = MANUAL["README.md"]
    assert text.count("\n") <= 250
    assert len(text.encode()) <= 15_000


def test_the_index_leads_to_every_page() -> None:
    named = {ROOT / "docs" / path for path, _ in links(MANUAL[INDEX])}
    pages = {ROOT / "docs" / ".." / name for name in ("README.md", "CONTRIBUTING.md")}
    pages |= {ROOT / name for name in MANUAL if name.startswith("docs/")}
    pages.remove(ROOT / INDEX)
    assert {path.resolve() for path in pages} <= {path.resolve() for path in named}


@pytest.mark.parametrize("page", [*MANUAL, "proto/README.md"])
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: str) -> None:
    text = (ROOT / page).read_text()
    for path, anchor in links(text):
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target.read_text()), f"{path}#{anchor}"


# --- settings -------------------------------------------------------------------------


def shown(setting: Setting) -> str:
    """A setting's default, as TOML has it without quotes."""
    default = setting.default
    if default is MISSING:
        return "see below"
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return "none" if default in (None, "") else f"`{text}`"


def test_the_settings_table_is_the_settings() -> None:
    expected = [
        [
            f"`{setting.name}`",
            f"`{setting.variable}`",
            shown(setting),
            setting.allowed,
            setting.meaning + (f" (`{setting.flag}`)" if setting.flag else ""),
        ]
        for setting in SETTINGS
    ]
    assert rows(section("docs/configuration.md", "Settings")) == expected


def test_every_variable_exists() -> None:
    known = {setting.variable for setting in SETTINGS} | {FILE_VARIABLE, PURE_WHEEL}
    assert set(re.findall(r"LIVENESS_[A-Z_]+", WHOLE)) == known


def test_every_setting_that_is_named_exists() -> None:
    sections = {setting.section for setting in SETTINGS if setting.section}
    # Some files begin as a section does: timers.db, http.py.
    name = rf"\b(?:{'|'.join(sections)})\.(?!db\b|py\b)[a-z_]+"
    named = set(re.findall(name, inline(WHOLE)))
    assert named <= {setting.name for setting in SETTINGS}


def test_the_limits_are_those_in_force() -> None:
    limits = " ".join(section("docs/operations.md", "Limits").split())
    by_name = {setting.name: setting.default for setting in SETTINGS}
    for name, shown in {
        "limits.max_frame_bytes": f"{by_name['limits.max_frame_bytes'] >> 20} MiB",
        "limits.max_batch": "{:,} uids",
        "limits.hello_s": "{:.0f} s for its hello",
        "limits.window": "{:,} records in flight",
        "limits.max_replies": "{:,} replies",
        "limits.max_refused": "{:,} refused frames",
        "limits.max_links": "{:,} links",
        "limits.max_names": "{:,} names",
        "limits.pause_firing": "At {:,} offlines",
        "limits.pause_reading": "at {:,} records sockets",
        "timers.max_pending": "Of {:,} timer orders",
        "http.max_connections": "{:,} connections",
        "http.request_s": "A request has {:.0f} s to come whole",
        "http.max_header_bytes": f"{by_name['http.max_header_bytes'] >> 10} KiB",
        "http.max_body_bytes": f"{by_name['http.max_body_bytes'] >> 10} KiB",
    }.items():
        assert shown.format(by_name[name]) in limits, name


# --- metrics, HTTP, security ----------------------------------------------------------


def exposed() -> set[str]:
    """Every metric, with its labels."""
    known = [replace(gateway, interval_s=1.0) for gateway in gateways(1)]
    names = set()
    for family in Collector(Counts(), lambda: replace(NOW, gateways=known)).collect():
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = dict.fromkeys(
            label for one in family.samples for label in one.labels if label != "le"
        )
        listed = ",".join(labels)
        names.add(family.name + suffix + (f"{{{listed}}}" if labels else ""))
    return names


def test_the_metrics_table_names_exactly_what_is_exposed() -> None:
    documented = {
        row[0].strip("`") for row in rows(section("docs/metrics.md", "Metrics"))
    }
    assert documented == exposed()
    mentioned = set(re.findall(r"\bliveness_\w+", WHOLE))
    assert mentioned == {re.sub(r"\{.*", "", name) for name in documented}


def test_the_reasons_to_refuse_http_are_those_that_are_counted() -> None:
    reasons = rows(section("docs/http-api.md", "Refusal reasons"))
    told = [name for row in reasons for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(told) == sorted(HttpRefusal)


def test_each_threat_names_a_test_that_shows_that_it_is_met() -> None:
    threats = [row for row in rows(MANUAL["docs/security.md"]) if len(row) == 4]
    assert len(threats) > 13
    for row in threats:
        tests = re.findall(r"`(tests/[^`:]+)::([a-z0-9_]+)`", row[3])
        assert tests, row
        for path, name in tests:
            text = (ROOT / path).read_text()
            assert re.search(rf"^(async )?def {name}\(", text, re.M), (path, name)


def test_the_rights_are_those_of_the_settings() -> None:
    rights = [row for row in rows(MANUAL["docs/security.md"]) if len(row) == 2]
    told = [row[0].strip("`") for row in rights]
    assert told == [one.name for one in SETTINGS if one.section == "access"]


def test_the_record_shown_is_a_record() -> None:
    schema: dict[str, Any] = json.loads((ROOT / "proto/record.schema.json").read_text())
    (shown,) = blocks("docs/any-language.md", "json")
    jsonschema.validate(json.loads(shown), schema)


# --- commands -------------------------------------------------------------------------


def flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def words(line: str) -> str:
    """The names of a command, and of its own command where it has some."""
    return " ".join(line.split()[1 : 3 if line.split()[1] in GROUPS else 2])


def names(app: App) -> set[str]:
    return {name for name in app if not name.startswith("-")}


def test_every_command_is_shown_and_no_other_is_named() -> None:
    assert {line.split()[1] for line in SHOWN} == names(cli.app)
    assert set(re.findall(r"^liveness ([a-z-]+)\b", inline(WHOLE), re.M)) <= names(
        cli.app
    )


@pytest.mark.parametrize("group", GROUPS)
def test_every_command_of_a_group_is_shown_and_no_other_is_named(group: str) -> None:
    known = names(GROUPS[group])
    assert {line.split()[2] for line in SHOWN if line.split()[1] == group} == known
    named = re.findall(rf"\bliveness {group} ([a-z]+)\b", inline(WHOLE))
    assert set(named) <= known


def test_every_flag_exists(help_of: Help) -> None:
    known = {name: flags(help_of(name)) for name in set(map(words, SHOWN))}
    for line in SHOWN:
        assert flags(line) <= known[words(line)], line
    # Those of other programs stand behind their names.
    manual = "\n".join(text for page, text in MANUAL.items() if "docs/" in page)
    ours = re.findall(r"^(?:liveness |--).*$", inline(manual), re.M)
    assert flags("\n".join(ours)) <= {"--help"}.union(*known.values())


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:`|\n)make ([a-z]+)\b", WHOLE)):
        assert re.search(rf"^{target}:", makefile, re.M), target

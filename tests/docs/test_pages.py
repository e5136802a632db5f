"""The documents are a contract: they name what exists, nothing else, and all of it.

Names are taken from the product: the settings' one definition, the metrics' collector,
the command line's own help. What the documents show to work is run in
`tests/system/test_documents.py`.
"""

import json
import re
import shlex
from dataclasses import MISSING, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import jsonschema
import pytest
from cyclopts import App, CycloptsError

from liveness.cli import main
from liveness.config.compiled import PURE_WHEEL
from liveness.config.outlet_settings import OUTLETS
from liveness.config.schema import Setting
from liveness.config.settings import SETTINGS, HttpSettings, outlet_settings
from liveness.config.sources import FILE_VARIABLE
from liveness.core.limits import Limits
from liveness.errors import LivenessError
from liveness.metrics.collector import Collector
from liveness.metrics.counts import LIMITS
from liveness.metrics.now import OUTLET_STATES
from tests.helpers.command_lines import checked
from tests.helpers.pages import (
    INDEX,
    MANUAL,
    WHOLE,
    Command,
    anchors,
    blocks,
    commands,
    inline,
    links,
    prose,
    rows,
    section,
    shell_lines,
)
from tests.helpers.tree import ROOT
from tests.mutants.__main__ import mutants_parser
from tests.mutants.pairs import pairs
from tests.service.test_metrics import NOW, gateways

GROUPS: Final = {
    name: main.app[name] for name in ("timers", "gateways", "webhooks", "cluster")
}
# Every command, as one would type it.
SHOWN: Final = blocks("docs/command-line.md", "sh")[0].splitlines()
API: Final[dict[str, Any]] = json.loads((ROOT / "docs/openapi.json").read_text())
MAKEFILE: Final = (ROOT / "Makefile").read_text()
NOXFILE: Final = (ROOT / "noxfile.py").read_text()
# Their ARGS are those of a command.
MAKES: Final = ("demo", "serve", "bench")
PAIRS: Final = {pair.name for pair in pairs(ROOT)}


# --- pages ----------------------------------------------------------------------------


def test_the_index_leads_to_every_page() -> None:
    named = {ROOT / "docs" / path for path, _ in links(MANUAL[INDEX])}
    pages = {ROOT / "docs" / ".." / name for name in ("README.md", "CONTRIBUTING.md")}
    pages |= {ROOT / name for name in MANUAL if name.startswith("docs/")}
    pages.remove(ROOT / INDEX)
    assert {path.resolve() for path in pages} <= {path.resolve() for path in named}


# Pages that are no part of the manual.
OTHERS: Final = (
    *("CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md"),
    *("proto/README.md", "proto/cluster.md"),
)


@pytest.mark.parametrize("page", [*MANUAL, *OTHERS])
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
    return "none" if default in (None, "", {}) else f"`{text}`"


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


def test_the_tables_of_outlets_are_their_settings() -> None:
    expected = [
        [
            f"`{setting.key}`",
            "none; required" if setting.is_required else shown(setting),
            setting.allowed,
            setting.meaning,
        ]
        for name in OUTLETS
        for setting in outlet_settings(name, "NAME")
    ]
    assert rows(section("docs/configuration.md", "Outlets")) == expected


def test_every_variable_exists() -> None:
    known = {setting.variable for setting in SETTINGS} | {FILE_VARIABLE, PURE_WHEEL}
    assert set(re.findall(r"LIVENESS_[A-Z_]+", WHOLE)) == known


_SECTIONS: Final = "|".join(sorted({setting.section for setting in SETTINGS} - {""}))


def test_every_setting_that_is_named_exists() -> None:
    # Some files begin as a section does: timers.db, http.py, limits.md.
    name = rf"\b(?:{_SECTIONS})\.(?!db\b|py\b|md\b)[a-z_]+"
    named = set(re.findall(name, inline(WHOLE)))
    assert named <= {setting.name for setting in SETTINGS} | {*LIMITS}
    named = set(re.findall(r"\b(?:webhooks|kafka)\.NAME\.[a-z_]+", inline(WHOLE)))
    own = {it.name for name in OUTLETS for it in outlet_settings(name, "NAME")}
    assert named <= own


def test_the_limits_are_those_in_force() -> None:
    page = " ".join(MANUAL["docs/limits.md"].split())
    limits, http = Limits(), HttpSettings()
    webhook = {it.key: it.default for it in outlet_settings("webhooks", "NAME")}
    for shown in (
        f"{limits.max_frame_bytes >> 20} MiB",
        f"{limits.max_batch:,} uids",
        f"{limits.hello_s:.0f} s for its hello",
        f"{limits.window:,} records in flight",
        f"{limits.max_settling:,} offlines wait for `settle_s`",
        f"{webhook['timeout_s']:.0f} s for an attempt",
        f"{limits.max_replies:,} replies",
        f"{limits.max_refused:,} refused frames",
        f"{limits.max_links:,} links",
        f"{limits.max_names:,} names",
        f"At {limits.pause_firing:,} offlines",
        f"at {limits.pause_reading:,} records sockets",
        f"Of {limits.max_pending:,} timer commands",
        f"{http.max_connections:,} connections",
        f"A request has {http.request_s:.0f} s to arrive",
        f"head of at most {http.max_header_bytes >> 10} KiB",
        f"body of at most {http.max_body_bytes >> 10} KiB",
    ):
        assert shown in page


# --- metrics, HTTP, security ----------------------------------------------------------


def exposed() -> set[str]:
    """Every metric, with its labels."""
    known = [replace(gateway, interval_s=1.0) for gateway in gateways(1)]
    names = set()
    for family in Collector(lambda: replace(NOW, gateways=known)).collect():
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


def test_each_threat_names_a_test_that_shows_that_it_is_met() -> None:
    threats = [row for row in rows(MANUAL["docs/security.md"]) if len(row) == 4]
    assert len(threats) > 13
    for row in threats:
        tests = re.findall(r"`(tests/[^`:]+)::([a-z0-9_]+)`", row[3])
        assert tests, row
        for path, name in tests:
            text = (ROOT / path).read_text()
            assert re.search(rf"^(async )?def {name}\(", text, re.M), (path, name)


def test_the_http_api_to_read_is_the_one_that_the_sidecar_serves() -> None:
    served, shown = "liveness/service/http/page/openapi.json", "docs/openapi.json"
    assert not (ROOT / shown).is_symlink()
    same = (ROOT / served).read_bytes() == (ROOT / shown).read_bytes()
    assert same, f"cp {served} {shown}"


def test_an_outlet_in_a_summary_is_as_the_api_says() -> None:
    schema = API["components"]["schemas"]["Outlet"]
    (shown,) = (outlet.as_map() for outlet in NOW.outlets)
    validate_by(shown, schema)
    assert [*shown] == [*schema["properties"]] == schema["required"]
    assert schema["properties"]["state"]["enum"] == [*OUTLET_STATES]


# --- files and tests ------------------------------------------------------------------

# Folders of the repository, and of the package, where some pages leave its name out.
FOLDERS: Final = (
    *("liveness", "tests", "proto", "deploy", "docs", "grafana"),
    *("core", "service", "commands", "demo", "bench"),
)


def is_there(path: str) -> bool:
    found = [*ROOT.glob(path), *(ROOT / "liveness").glob(path)]
    return any(it.is_dir() or not path.endswith("/") for it in found)


@cache
def all_tests() -> set[str]:
    files = "".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py"))
    return set(re.findall(r"^(?:async )?def (test_\w+)", files, re.M))


@pytest.mark.parametrize("page", MANUAL)
def test_every_file_and_test_that_is_named_exists(page: str) -> None:
    named = inline(prose(MANUAL[page]))
    first = "|".join(FOLDERS)
    paths = re.findall(rf"^((?:{first})/[\w.*/-]*)(?:::\w+)?$", named, re.M)
    # NAME stands for any.
    assert [it for it in paths if "NAME" not in it and not is_there(it)] == []
    assert set(re.findall(r"^(?:[\w/.]+::)?(test_\w+)$", named, re.M)) <= all_tests()


# --- commands -------------------------------------------------------------------------


def flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def words(line: str) -> str:
    """The names of a command, and of its own command where it has some."""
    return " ".join(line.split()[1 : 3 if line.split()[1] in GROUPS else 2])


def names(app: App) -> set[str]:
    return {name for name in app if not name.startswith("-")}


def test_every_command_is_shown_and_no_other_is_named() -> None:
    assert {line.split()[1] for line in SHOWN} == names(main.app)
    assert set(re.findall(r"^liveness ([a-z-]+)\b", inline(WHOLE), re.M)) <= names(
        main.app
    )


# --- commands that a reader copies ----------------------------------------------------


def fault_of(command: Command, *, settings: Path) -> str | None:
    """Why a command of ours cannot be run as it is shown; None if it can."""
    try:
        match command.program:
            case "liveness":
                has_file = "--config" in command.words
                file = settings if has_file else None
                checked(command.words, command.environ, file=file)
            case "make":
                check_make(command.words[1], command.words[2:])
            case "curl":
                check_request(command.words[1:])
            case _:
                for program, argument in pairwise(command.words):
                    is_ours = Path(program).name == "liveness"
                    assert not (is_ours and argument in names(main.app)), "hidden"
    except (
        CycloptsError,
        LivenessError,
        ValueError,
        AssertionError,
        LookupError,
        jsonschema.ValidationError,
    ) as error:
        return f"{type(error).__name__}: {error}"
    return None


def check_make(target: str, variables: list[str]) -> None:
    body = re.search(rf"^def {target}\(.*\n((?:    .*\n)*)", NOXFILE, re.M)
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)*)", MAKEFILE, re.M)
    assert body or recipe, "no such target"
    for variable in variables:
        name, _, value = variable.partition("=")
        assert re.search(rf"\b{name}\b", MAKEFILE + NOXFILE), f"no {name}"
        arguments = shlex.split(value) if name == "ARGS" else []
        if target in MAKES:
            checked(["liveness", target, *arguments])
        elif module := body and re.search(r'"(tests|grafana)\.(\w+)', body[1]):
            folder = ROOT / module[1] / module[2]
            text = "\n".join(path.read_text() for path in folder.glob("*.py"))
            for flag in flags(value):
                assert f'"{flag}"' in text, f"no {flag}"
            if target == "mutants":
                for place in mutants_parser().parse_args(arguments).places:
                    assert place in PAIRS or (ROOT / place.partition(":")[0]).exists()
        else:
            for path in (it for it in arguments if it.startswith("tests/")):
                assert (ROOT / path).exists(), path


def check_request(arguments: list[str]) -> None:
    """A request of curl's is one that the OpenAPI document has."""
    (url,) = (urlsplit(it) for it in arguments if it.startswith("http://"))
    bodies = [body for flag, body in pairwise(arguments) if flag == "--data"]
    operations = API["paths"][path_of(url.path)]
    operation = operations["post" if bodies else "get"]
    for body in bodies:
        validate(json.loads(body), operation["requestBody"])
    parameters = {
        one["name"]: one["schema"]
        for one in map(resolved, operation.get("parameters", []))
        if one["in"] == "query"
    }
    for name, value in parse_qsl(url.query, strict_parsing=bool(url.query)):
        schema = resolved(parameters[name])
        schema = schema.get("items", schema)  # it may be repeated
        is_number = resolved(schema).get("type") == "integer"
        validate_by(int(value) if is_number else value, schema)


def path_of(asked: str) -> str:
    """The path of the OpenAPI document that a request asks for."""
    for path in API["paths"]:
        form = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))
        if re.fullmatch(form, asked):
            return str(path)
    raise LookupError(f"no path {asked}")


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in part:
        return part
    found: Any = API
    for name in part["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return resolved(found)


def validate(value: object, holder: dict[str, Any]) -> None:
    """Hold a JSON body to its schema: that of a request, or of a response."""
    validate_by(value, resolved(holder)["content"]["application/json"]["schema"])


def validate_by(value: object, schema: dict[str, Any]) -> None:
    whole = {**schema, "components": API["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


@pytest.mark.parametrize("page", [page for page in MANUAL if [*shell_lines(page)]])
def test_each_command_of_a_page_can_be_run_as_it_is_shown(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is run. The settings file is the one that the page shows, or empty."""
    settings = tmp_path / "liveness.toml"
    settings.write_text("\n".join(blocks(page, "toml")))
    monkeypatch.chdir(tmp_path)  # where a report could be written
    faults = {
        line: fault
        for line in shell_lines(page)
        for command in commands(line)
        if (fault := fault_of(command, settings=settings))
    }
    assert not faults


def test_the_answers_of_http_that_are_shown_have_the_shape_that_is_documented() -> None:
    text = "".join(blocks("docs/http-api.md", "console"))
    shown = re.findall(r"^\$ curl .*?http://[^/]+([^' ?\n]+).*\n(\{.*\})$", text, re.M)
    whole = [(path, answer) for path, answer in shown if "…" not in answer]
    for path, answer in whole:
        methods = API["paths"][path_of(path)]
        operation = methods.get("get") or methods["post"]
        if path == "/v1/users":
            validate_by(json.loads(answer), operation["x-lines"]["each user"])
        else:
            validate(json.loads(answer), operation["responses"]["200"])
    assert len(whole) > 5
    events = re.findall(r"^event: (\w+)\ndata: (.*)$", text, re.M)
    schemas = API["paths"]["/v1/feed"]["get"]["x-events"]
    for name, data in events:
        validate_by(json.loads(data), schemas[name])
    assert len(events) > 1


@pytest.mark.parametrize("page", [page for page in MANUAL if blocks(page, "toml")])
def test_the_settings_that_a_page_shows_are_accepted(page: str, tmp_path: Path) -> None:
    settings = tmp_path / "liveness.toml"
    for block in blocks(page, "toml"):
        settings.write_text(block)
        checked(["liveness", "serve"], file=settings)

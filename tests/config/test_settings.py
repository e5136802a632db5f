"""The settings: one definition, four sources, and errors that name the source."""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from liveness.config.cluster import ClusterSettings
from liveness.config.schema import Setting
from liveness.config.settings import (
    SETTINGS,
    Config,
    HttpSettings,
    SocketSettings,
    StateSettings,
)
from liveness.config.sources import MAX_FAULTS, MAX_FILE_BYTES, load, socket_path
from liveness.errors import ConfigError
from liveness.service.links.sockets import make_socket_folder
from tests.helpers.tree import ROOT

EXAMPLE = (ROOT / "deploy/liveness.toml").read_text()
HOME = {"HOME": "/srv/ann", "XDG_RUNTIME_DIR": "/run/user/1000"}
SOMEBODY = 1000
BY_NAME = {setting.name: setting for setting in SETTINGS}
BOUNDED = [setting for setting in SETTINGS if setting.bounds]
BARE: dict[str, Any] = {
    "socket": SocketSettings(path=Path("/s")),
    "state": StateSettings(dir=Path("/d")),
}


def loaded(
    toml: str | None = None,
    tmp_path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    **flags: str,
) -> Config:
    """Settings of an unprivileged user, from sources that only the test knows."""
    file = None
    if toml is not None:
        assert tmp_path is not None
        file = tmp_path / "l.toml"
        file.write_text(toml)
    return load(
        {f"--{flag}": text for flag, text in flags.items()},
        file=file,
        environ={**HOME, **(environ or {})},
        unix_user=SOMEBODY,
        default_file=Path("/there/is/no/such/file"),
    )


def refused(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def by_variable(name: str, text: str, **environ: str) -> object:
    """The value of a setting whose environment variable is this text."""
    setting = BY_NAME[name]
    return setting.value_in(loaded(environ={setting.variable: text} | environ))


def values(config: Config) -> dict[str, object]:
    return {setting.name: setting.value_in(config) for setting in SETTINGS}


def in_toml(setting: Setting, value: object) -> str:
    section = f"[{setting.section}]\n" if setting.section else ""
    return f"{section}{setting.key} = {value}\n"


# --- the one definition ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout_s", "slots", "flush_s", "effective_s"),
    [
        (30, 30, 0, 1.0),  # one slot
        (3600, 30, 0, 1.0),  # a slot of two minutes, and at most a second
        (30, 30, 5, 5.0),
        (30, 30, 10, 7.5),  # a quarter of the timeout
    ],
)
def test_flush_is_one_slot_unless_it_is_set_and_a_quarter_of_the_timeout_at_most(
    timeout_s: float, slots: int, flush_s: float, effective_s: float
) -> None:
    toml = f"timeout_s = {timeout_s}\nslots = {slots}\nflush_s = {flush_s}\n"
    config = Config(**tomllib.loads(toml), **BARE)
    assert config.flush == pytest.approx(effective_s)


# --- the four sources -----------------------------------------------------------------


def test_flags_precede_the_environment_and_that_the_file(tmp_path: Path) -> None:
    toml = "timeout_s = 4\nslots = 40\n[limits]\nmax_links = 400\n"
    environ = {"LIVENESS_TIMEOUT_S": "5", "LIVENESS_SLOTS": "50"}
    environ["LIVENESS_PURE_WHEEL"] = "1"  # which is no setting
    config = loaded(toml, tmp_path, environ=environ, timeout="6")
    sources = config.sources
    assert (config.timeout_s, sources["timeout_s"]) == (6.0, "flag --timeout")
    assert (config.slots, sources["slots"]) == (50, "environment LIVENESS_SLOTS")
    assert config.limits.max_links == 400
    assert sources["limits.max_links"] == str(tmp_path / "l.toml")
    assert "limits.max_batch" not in sources  # it has the default


def test_the_file_is_that_of_flag_environment_or_default(tmp_path: Path) -> None:
    for name, slots in (("flag", 10), ("environment", 11), ("default", 12)):
        (tmp_path / name).write_text(f"slots = {slots}\n")
    variable = {**HOME, "LIVENESS_CONFIG": str(tmp_path / "environment")}
    for file, environ, default, slots in (
        (tmp_path / "flag", variable, "default", 10),
        (None, variable, "default", 11),
        (None, HOME, "default", 12),
        (None, HOME, "absent", 30),
    ):
        place = tmp_path / default
        found = load(file=file, environ=environ, unix_user=SOMEBODY, default_file=place)
        assert found.slots == slots


def test_a_client_that_names_the_socket_reads_no_other_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVENESS_NO_SUCH_THING", "1")
    assert socket_path(str(tmp_path / "s")) == tmp_path / "s"
    with pytest.raises(ConfigError, match="LIVENESS_NO_SUCH_THING"):
        socket_path(None)
    with pytest.raises(ConfigError, match="flag --socket"):
        socket_path(path_of(108))


def test_all_that_is_wrong_in_any_source_is_reported_at_once(tmp_path: Path) -> None:
    toml = (
        "slots = 1\nnosuch = 3\nflush_s = 'x'\nsocket = '/s'\n[limits]\nmax_links = 0\n"
    )
    environ = {
        "LIVENESS_FLUSH_S": "2",
        "LIVENESS_GUARD_SHARE": "half",
        "LIVENESS_NOSUCH": "1",
    }
    with pytest.raises(ConfigError) as caught:
        loaded(toml, tmp_path, environ=environ, timeout="0")
    file = tmp_path / "l.toml"
    assert [fault.split(": ")[0] for fault in caught.value.faults] == [
        "timeout_s is '0' (flag --timeout)",
        "guard.share is 'half' (environment LIVENESS_GUARD_SHARE)",
        "environment",  # there is no setting of that name
        f"slots is 1 ({file})",
        str(file),
        str(file),  # a section
        f"limits.max_links is 0 ({file})",
    ]
    assert str(caught.value) == "\n".join(caught.value.faults)


def test_an_unreadable_file_does_not_hide_what_else_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded("slots 3", tmp_path, timeout="0")
    file, flag = f"{tmp_path / 'l.toml'}:", "timeout_s"
    assert [fault.split(" ")[0] for fault in caught.value.faults] == [flag, file]


def test_of_very_many_faults_the_others_are_counted(tmp_path: Path) -> None:
    toml = "".join(f"wrong_{number} = 1\n" for number in range(20_000))
    with pytest.raises(ConfigError) as caught:
        loaded(toml, tmp_path, timeout="0")
    *described, last = caught.value.faults
    assert len(described) == MAX_FAULTS
    assert last == f"{20_001 - MAX_FAULTS} more settings are wrong; correct these first"


# --- names ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "named", "nearest"),
    [
        ("timeout = 3", "timeout", "timeout_s"),
        ("[socket]\nmax_links = 3", "socket.max_links", "limits.max_links"),
        ("[limit]\nmax_links = 3", "limit", "limits"),
    ],
    ids=["misspelled", "misplaced", "section"],
)
def test_an_unknown_name_is_told_with_the_nearest(
    toml: str, named: str, nearest: str, tmp_path: Path
) -> None:
    expected = f": there is no setting {named}; the nearest is {nearest}"
    assert refused(toml, tmp_path).startswith(f"{tmp_path / 'l.toml'}{expected}")
    assert refused(environ={"LIVENESS_TIMEOUT": "3"}) == (
        "environment: there is no setting LIVENESS_TIMEOUT; "
        "the nearest is LIVENESS_TIMEOUT_S"
    )


# --- values ---------------------------------------------------------------------------


def a_step_outside(setting: Setting) -> tuple[float, float]:
    assert setting.bounds
    low, high = setting.bounds
    step = 1 if setting.kind is int else 1e-6
    return low - step, high + step


@pytest.mark.parametrize("setting", BOUNDED, ids=lambda setting: str(setting.name))
def test_a_step_beyond_a_bound_is_refused(setting: Setting, tmp_path: Path) -> None:
    assert setting.bounds
    for value in setting.bounds:
        by_file = loaded(in_toml(setting, value), tmp_path)
        assert setting.value_in(by_file) == value
        assert type(setting.value_in(by_file)) is setting.kind
        environ = {setting.variable: str(value)}
        assert values(loaded(environ=environ)) == values(by_file)
    for value in a_step_outside(setting):
        error = refused(in_toml(setting, value), tmp_path)
        where = f"{setting.name} is {value!r} ({tmp_path / 'l.toml'})"
        assert error == f"{where}: it must be {setting.allowed}"
        error = refused(environ={setting.variable: str(value)})
        where = f"{setting.name} is '{value}' (environment {setting.variable})"
        assert error == f"{where}: it must be {setting.allowed}"


# By setting: texts that break its rule.
REFUSED: dict[str, list[str]] = {
    "timeout_s": ["", "ten", "nan", "30 s", "0x10", "true"],
    "state.retention_s": ["1e400", "-1", "9" * 10_000],
    "slots": ["4.5", "9" * 10_000],
    "guard.enabled": ["1", "True", ""],
    "logging.level": ["trace"],
    "socket.mode": ["0640", "660", "0o660", ""],
    "socket.group": ["@crew", "a,b", "*", "-"],
    "socket.path": ["", "/run/admin.sock", "/a\0b"],
    "http.address": [
        *("", "80", ":80", "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:-1"),
        *("127.0.0.1:8o", "127.0.0.1:" + "9" * 5_000, "[127.0.0.1]:80", "::1:80"),
    ],
    "http.hosts": [
        *(",", "a,", "a:80", "[::1]", "http://a", "*.example", "-a", "a.", "a b"),
        *("a\nb", "é.example", "a" * 254, ",".join(["a"] * 101)),
    ],
    "access.gateways": ["@", "a b", "-x", "@@x", "é", "x" * 65, "**", "u," * 1_001],
    "access.names": ["gw-1", "=chat", "gw-1=", "gw-1=@crew", f"{'n' * 65}=chat"],
    "cluster.url": [
        *("a:6379", "http://a", "redis://", "redis://a:0", "redis://a:65536"),
        *("redis://[::1", "redis://a/x", "redis://a/1/2", "redis://a?b", "redis:///1"),
    ],
    "cluster.nodes": ["a", "a:0", "a:1;b:2", ",", ",".join(["a:1"] * 1_001)],
    "cluster.host": ["a\nb", "h" * 65],
    "cluster.prefix": ["", "a{b", "*", "p" * 65],
    "cluster.tls": ["off"],
}


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for name, texts in REFUSED.items() for text in texts],
)
def test_a_text_that_is_no_value_is_refused(name: str, text: str) -> None:
    variable, quoted = BY_NAME[name].variable, repr(text)
    shown = quoted if len(quoted) <= 60 else quoted[:57] + "…"
    error = refused(environ={variable: text})
    assert error.startswith(f"{name} is {shown} (environment {variable}): ")
    assert name == "socket.path" or "it must be " in error


def test_a_value_where_a_section_belongs_is_refused(tmp_path: Path) -> None:
    assert "write [socket] on a line above" in refused('socket = "/s"', tmp_path)


def test_a_name_is_tied_once() -> None:
    told = refused(environ={"LIVENESS_ACCESS_NAMES": "gw-1=a,gw-1=b"})
    assert "a name is there twice" in told


# --- the file as a file ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"slots = 3\n\ntimeout_s = = 3\n", r"not TOML: .* \(at line 3.*"),
        (b"slots = 3\n# caf\xe9\n", r"not UTF-8 \(at line 2\)"),
        (b"a = " + b"[" * 5_000, "not .*"),
        (b"http.address" + b".x" * 5_000 + b" = 1", "not .*"),
        (b"slots = " + b"9" * 5_000, "not .*"),
        (b"#" * MAX_FILE_BYTES + b"\n", f"not TOML: over {MAX_FILE_BYTES} bytes"),
    ],
    ids=["line", "latin-1", "brackets", "dots", "digits", "long"],
)
def test_a_file_with_an_error_is_named(data: bytes, error: str, tmp_path: Path) -> None:
    file = tmp_path / "l.toml"
    file.write_bytes(data)
    told = refused(environ={"LIVENESS_CONFIG": str(file)})
    assert re.fullmatch(f"{re.escape(str(file))}: {error}; correct it there", told)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    told = refused(environ={"LIVENESS_CONFIG": str(absent)})
    assert told.startswith(f"{absent}: the settings cannot be read (No such file")
    with pytest.raises(ConfigError, match="Is a directory"):
        load(environ=HOME, unix_user=SOMEBODY, default_file=tmp_path)


# --- addresses and names of hosts -----------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "[::ffff:127.0.0.1]:1", "example.org:80"],
)
def test_an_address_beyond_loopback_needs_a_token(address: str) -> None:
    told = refused(http=address)
    where = f"http.address is '{address}' (flag --http)"
    assert told.startswith(f"{where}: an address other than loopback needs a token")
    with pytest.raises(ConfigError, match=re.escape(f"'{address}': an address other")):
        Config(**BARE, http=HttpSettings(address=address))
    assert "name that by http.token_file, or use 127.0.0.1" in told
    file = {"LIVENESS_HTTP_TOKEN_FILE": "/token"}
    http = loaded(http=address, environ=file).http
    assert (http.is_on_loopback, http.token_file) == (False, Path("/token"))


# --- presence across hosts -------------------------------------------------------------


HUNTER = "hunter2"  # apart from the address, in which it would look like a secret


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("url", f"redis://ann:{HUNTER}@a"),
        ("url", f"ftp://:{HUNTER}@a"),
        ("nodes", f"ann:{HUNTER}@a:1"),
    ],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(
    name: str, text: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {name: text}
    sources: list[Callable[[], object]] = [
        lambda: loaded(f"[cluster]\n{name} = ['{text}']\n", tmp_path),
        lambda: by_variable(f"cluster.{name}", text),
        lambda: Config(**BARE, cluster=ClusterSettings(**given)),
    ]
    for give in sources:
        with pytest.raises(ConfigError) as caught:
            give()
        (fault,) = caught.value.faults
        assert fault.startswith(f"cluster.{name} is not shown here, as it may hold a p")
        assert HUNTER not in fault


@pytest.mark.parametrize(
    ("toml", "wrong"),
    [
        ("url = 'redis://a'\nnodes = 'b:1'", {"nodes": "there is cluster.url, too"}),
        ("url = 'rediss://a'\ntls_key_file = '/k'", {"tls_key_file": "name that by"}),
        (
            "url = 'redis://a'\ntls_ca_file = '/a'\ntls_cert_file = '/c'",
            dict.fromkeys(("tls_ca_file", "tls_cert_file"), "are not encrypted"),
        ),
        ("nodes = 'a:1'\ntls = 'on'\ntls_ca_file = '/a'\ntls_cert_file = '/c'", {}),
    ],
)
def test_settings_that_do_not_go_together_are_named_once(
    toml: str, wrong: dict[str, str], tmp_path: Path
) -> None:
    faults: tuple[str, ...] = ()
    try:
        loaded(f"[cluster]\n{toml}\n", tmp_path)
    except ConfigError as error:
        faults = error.faults
    for fault, (key, why) in zip(faults, wrong.items(), strict=True):
        assert re.match(
            rf"cluster\.{key} is '.+' \({tmp_path}/l\.toml\): .*{why}", fault
        )


# --- paths ----------------------------------------------------------------------------


def path_of(length: int, name: str = "gateway.sock") -> str:
    return "/" + "a" * (length - len(name) - 2) + "/" + name


@pytest.mark.parametrize("name", ["gateway.sock", "s"])  # or admin.sock is longer
def test_paths_of_sockets_have_107_bytes_at_most(name: str) -> None:
    longest = path_of(107 - max(0, len("admin.sock") - len(name)), name)
    assert loaded(socket=longest).socket.path == Path(longest)
    # Bytes count, not characters.
    for path in (longest.replace("a", "aa", 1), longest.replace("a", "é", 1)):
        assert (
            "takes 108 bytes, and the path of a socket has room for 107"
        ) in refused(socket=path)


def test_a_relative_path_starts_at_the_working_directory_and_an_empty_one_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert loaded(state="state").state.dir == tmp_path / "state"
    for text, path in (("", None), ("token", tmp_path / "token")):
        by_file = loaded(f'[http]\ntoken_file = "{text}"\n', tmp_path)
        assert by_file.http.token_file == by_variable("http.token_file", text) == path


def default_paths(unix_user: int, **environ: str) -> tuple[str, str]:
    config = load(environ=environ, unix_user=unix_user, default_file=Path("/absent"))
    return str(config.socket.path), str(config.state.dir)


def test_the_default_paths_are_the_systems_for_root_and_the_users_for_others() -> None:
    assert default_paths(0) == ("/run/liveness/gateway.sock", "/var/lib/liveness")
    runtime = {"XDG_RUNTIME_DIR": "/r", "XDG_STATE_HOME": "/s"}
    assert default_paths(SOMEBODY, HOME="/h", **runtime) == (
        "/r/liveness/gateway.sock",
        "/s/liveness",
    )
    assert default_paths(SOMEBODY, HOME="/h", XDG_RUNTIME_DIR="/r") == (
        "/r/liveness/gateway.sock",
        "/h/.local/state/liveness",
    )


def test_without_a_folder_of_the_user_socket_and_state_need_a_name() -> None:
    for folder in ("", "relative"):
        with pytest.raises(ConfigError, match="name one: --socket"):
            default_paths(SOMEBODY, HOME="/h", XDG_RUNTIME_DIR=folder)
    assert "name a folder: --state" in refused(environ={"HOME": ""})


def test_the_sockets_folder_is_made_unless_it_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    make_socket_folder(folder / "gateway.sock")
    assert folder.stat().st_mode & 0o777 == (0o700 if os.geteuid() else 0o755)
    folder.chmod(0o711)
    make_socket_folder(folder / "gateway.sock")
    assert folder.stat().st_mode & 0o777 == 0o711
    with pytest.raises(ConfigError, match=r"cannot be made \(No such file"):
        make_socket_folder(tmp_path / "not" / "there" / "gateway.sock")


# --- the example and check-config ------------------------------------------------------


def test_the_example_file_uncommented_has_the_defaults(tmp_path: Path) -> None:
    unnamed = EXAMPLE.split("\n# Outlets ")[0]  # these have no defaults
    uncommented = re.sub(r"^#(?=[a-z_]+ = )", "", unnamed, flags=re.MULTILINE)
    found = loaded(uncommented, tmp_path)
    assert set(found.sources.values()) == {str(tmp_path / "l.toml")}
    as_root = load(environ={}, unix_user=0, default_file=Path("/absent"))
    assert found == as_root

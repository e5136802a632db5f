"""The settings: one definition, four sources, and errors that say which."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest

from liveness.commands.check_config import effective
from liveness.config import (
    MAX_SOCKET_PATH_BYTES,
    SETTINGS,
    Config,
    HttpSettings,
    LimitSettings,
    Setting,
    SocketSettings,
    StateSettings,
)
from liveness.core.frames import MAX_AFTER_S, MAX_KEY_BYTES, MAX_TEXT_BYTES
from liveness.core.uids import MAX_UID_BYTES
from liveness.core.wire import encode
from liveness.errors import ConfigError
from liveness.places import make_socket_folder
from liveness.sources import MAX_FILE_BYTES, Loaded, load, socket_path

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "deploy" / "liveness.toml"
HOME = {"HOME": "/srv/ann", "XDG_RUNTIME_DIR": "/run/user/1000"}
SOMEBODY = 1000
NAMES = [setting.name for setting in SETTINGS]
BOUNDED = [setting for setting in SETTINGS if setting.bounds]


def loaded(
    toml: str | None = None,
    tmp_path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    **flags: str,
) -> Loaded:
    """Settings of a user of no privilege, from sources that only the test knows."""
    file = None
    if toml is not None:
        assert tmp_path is not None
        file = tmp_path / "l.toml"
        file.write_text(toml)
    return load(
        {f"--{flag}": text for flag, text in flags.items()},
        file=file,
        environ={**HOME, **(environ or {})},
        uid=SOMEBODY,
        default_file=Path("/there/is/no/such/file"),
    )


def refused(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def values(config: Config) -> dict[str, object]:
    return {setting.name: setting.value_in(config) for setting in SETTINGS}


def in_toml(setting: Setting, value: object) -> str:
    section = f"[{setting.section}]\n" if setting.section else ""
    return f"{section}{setting.key} = {value}\n"


# --- the one definition ---------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=NAMES)
def test_every_setting_says_what_it_means_and_what_it_may_be(setting: Setting) -> None:
    assert setting.meaning
    assert setting.bounds or setting.unit or "one of " in setting.allowed


@pytest.mark.parametrize("setting", SETTINGS, ids=NAMES)
def test_every_default_is_a_value_that_its_setting_allows(setting: Setting) -> None:
    default = setting.default
    if default is MISSING:
        default = setting.value_in(loaded().config)
    assert setting.read(default) == default
    assert type(setting.read(default)) is type(default)


def test_a_config_that_is_built_directly_is_checked_as_well() -> None:
    socket, state = SocketSettings(path=Path("/s")), StateSettings(dir=Path("/d"))
    with pytest.raises(ConfigError, match=r"limits\.window is 0: it must be"):
        Config(socket=socket, state=state, limits=LimitSettings(window=0))


@pytest.mark.parametrize(
    ("timeout_s", "slots", "flush_s", "effective_s"),
    [
        (30, 30, 0, 1.0),  # one slot
        (3, 30, 0, 0.1),
        (3600, 30, 0, 1.0),  # a slot of two minutes, and at most a second
        (30, 30, 5, 5.0),
        (30, 30, 10, 7.5),  # a quarter of the timeout
        (1, 2, 0, 0.25),
    ],
)
def test_flush_is_one_slot_unless_it_is_set_and_a_quarter_of_the_timeout_at_most(
    timeout_s: float, slots: int, flush_s: float, effective_s: float
) -> None:
    toml = f"timeout_s = {timeout_s}\nslots = {slots}\nflush_s = {flush_s}\n"
    config = Config(
        **tomllib.loads(toml),
        socket=SocketSettings(path=Path("/s")),
        state=StateSettings(dir=Path("/d")),
    )
    assert config.flush == pytest.approx(effective_s)


# --- the four sources -----------------------------------------------------------------


def test_a_flag_goes_before_the_environment_and_that_before_the_file(
    tmp_path: Path,
) -> None:
    toml = "timeout_s = 4\nslots = 40\n[limits]\nwindow = 400\n"
    environ = {"LIVENESS_TIMEOUT_S": "5", "LIVENESS_SLOTS": "50"}
    found = loaded(toml, tmp_path, environ=environ, timeout="6")
    config, sources = found.config, found.sources
    assert (config.timeout_s, sources["timeout_s"]) == (6.0, "flag --timeout")
    assert (config.slots, sources["slots"]) == (50, "environment LIVENESS_SLOTS")
    assert config.limits.window == 400
    assert sources["limits.window"] == str(tmp_path / "l.toml")
    assert sources["limits.tail"] == "default"
    assert set(sources) == set(NAMES)


def needed_by(setting: Setting) -> dict[str, str]:
    """What else is set where it has its lowest value."""
    is_room_for_frames = setting.key == "max_unfinished_bytes"
    return {"LIVENESS_LIMITS_MAX_FRAME_BYTES": "8192"} if is_room_for_frames else {}


@pytest.mark.parametrize("setting", BOUNDED, ids=lambda setting: str(setting.name))
def test_every_number_can_be_set_in_the_environment_and_in_the_file(
    setting: Setting, tmp_path: Path
) -> None:
    assert setting.bounds
    low, beside = setting.bounds[0], needed_by(setting)
    by_variable = loaded(environ=beside | {setting.variable: str(low)})
    by_file = loaded(in_toml(setting, low), tmp_path, environ=beside)
    assert setting.value_in(by_variable.config) == low
    assert values(by_variable.config) == values(by_file.config)


def test_the_lowest_bound_of_frames_takes_one_with_all_that_it_may_carry() -> None:
    (low,) = [
        it.bounds[0] for it in BOUNDED if it.key == "max_frame_bytes" and it.bounds
    ]
    key, text = "k" * MAX_KEY_BYTES, "t" * MAX_TEXT_BYTES
    for frame in (
        ["after", key, MAX_AFTER_S + 0.5, {"payload": text, "ext": key}],
        ["fail", key, text, {"seq": 2**63 - 1, "final": True}],
        ["login", ["u" * MAX_UID_BYTES], {"conn": 2**63 - 1, "age": 0.5, "began": 0.5}],
    ):
        assert len(encode(frame)) <= low


def test_the_file_is_the_flags_else_the_environments_else_the_default_one(
    tmp_path: Path,
) -> None:
    for name, slots in (("flag", 10), ("environment", 11), ("default", 12)):
        (tmp_path / name).write_text(f"slots = {slots}\n")
    variable = {**HOME, "LIVENESS_CONFIG": str(tmp_path / "environment")}
    default = tmp_path / "default"

    def slots_of(file: Path | None, environ: Mapping[str, str], default: Path) -> int:
        return load(
            file=file, environ=environ, uid=SOMEBODY, default_file=default
        ).config.slots

    assert slots_of(tmp_path / "flag", variable, default) == 10
    assert slots_of(None, variable, default) == 11
    assert slots_of(None, HOME, default) == 12
    assert slots_of(None, HOME, tmp_path / "absent") == 30


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    told = refused(environ={"LIVENESS_CONFIG": str(absent)})
    assert told.startswith(f"{absent}: the settings cannot be read (No such file")


def test_a_file_that_cannot_be_read_is_an_error_even_if_nobody_named_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load(environ=HOME, uid=SOMEBODY, default_file=tmp_path)


# --- strict names ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "named", "nearest"),
    [
        ("timeout = 3", "timeout", "timeout_s"),
        ("window = 3", "window", "limits.window"),  # the right key in the wrong place
        ("[socket]\nwindow = 3", "socket.window", "limits.window"),
        ("[limits]\nwindows = 3", "limits.windows", "limits.window"),
        ("[limit]\nwindow = 3", "limit", "limits"),
        ('"socket.path" = "/s"', "socket.path", "socket.path"),
    ],
)
def test_an_unknown_key_in_the_file_is_named_with_the_nearest_setting(
    toml: str, named: str, nearest: str, tmp_path: Path
) -> None:
    told = refused(toml, tmp_path)
    expected = f"{tmp_path / 'l.toml'}: there is no setting {named}; the nearest is "
    assert told.startswith(expected + nearest)


def test_an_unknown_key_like_no_setting_is_named_with_what_to_do(
    tmp_path: Path,
) -> None:
    told = refused('"a\\nb" = 3', tmp_path)
    expected = r"there is no setting 'a\nb', nor one like it; remove it: without it "
    assert told.startswith(f"{tmp_path / 'l.toml'}: {expected}`liveness check-config`")


def test_an_unknown_variable_is_named_with_the_nearest_one() -> None:
    told = refused(environ={"LIVENESS_TIMEOUT": "3"})
    assert told == (
        "environment: there is no setting LIVENESS_TIMEOUT; "
        "the nearest is LIVENESS_TIMEOUT_S"
    )


def test_the_reserved_variables_are_no_settings_and_no_errors() -> None:
    assert loaded(environ={"LIVENESS_PURE_WHEEL": "1"}).config == loaded().config


def test_a_value_where_a_section_belongs_is_refused(tmp_path: Path) -> None:
    assert "write [socket] on a line above" in refused('socket = "/s"', tmp_path)


def test_a_section_where_a_value_belongs_is_refused(tmp_path: Path) -> None:
    assert "it must be 1 to 86400 seconds" in refused("[timeout_s]\na = 1", tmp_path)


# --- strict values --------------------------------------------------------------------


def a_step_outside(setting: Setting) -> tuple[float, float]:
    assert setting.bounds
    low, high = setting.bounds
    step = 1 if setting.kind is int else 1e-6
    return low - step, high + step


@pytest.mark.parametrize("setting", BOUNDED, ids=lambda setting: str(setting.name))
def test_every_bound_is_allowed_and_a_step_beyond_it_is_not(
    setting: Setting, tmp_path: Path
) -> None:
    assert setting.bounds
    for value in setting.bounds:
        found = loaded(in_toml(setting, value), tmp_path, environ=needed_by(setting))
        assert setting.value_in(found.config) == value
    for value in a_step_outside(setting):
        told = refused(in_toml(setting, value), tmp_path)
        where = f"{setting.name} is {value!r} ({tmp_path / 'l.toml'})"
        assert told == f"{where}: it must be {setting.allowed}"
        told = refused(environ={setting.variable: str(value)})
        where = f"{setting.name} is '{value}' (environment {setting.variable})"
        assert told == f"{where}: it must be {setting.allowed}"


@pytest.mark.parametrize("raw", ["true", '"30"', "nan", "inf", "[30]", "1" * 400])
def test_what_is_no_number_is_refused_in_the_file(raw: str, tmp_path: Path) -> None:
    assert "it must be 1 to 86400 seconds" in refused(f"timeout_s = {raw}", tmp_path)


@pytest.mark.parametrize("text", ["", "ten", "nan", "1e400", "0x10", "true"])
def test_what_is_no_number_is_refused_on_the_command_line(text: str) -> None:
    told = f"timeout_s is {text!r} (flag --timeout): it must be 1 to 86400 seconds"
    assert refused(timeout=text) == told


@pytest.mark.parametrize("raw", ["30.0", "true"])
def test_what_is_no_whole_number_is_refused(raw: str, tmp_path: Path) -> None:
    told = refused(f"slots = {raw}", tmp_path)
    assert told.endswith("it must be a whole number, 2 to 3600 slots")


@pytest.mark.parametrize("value", [True, False])
def test_what_is_true_or_false_is_so_in_the_file_and_in_the_environment(
    tmp_path: Path, *, value: bool
) -> None:
    text = str(value).lower()
    by_file = loaded(f"[guard]\nenabled = {text}", tmp_path).config
    by_variable = loaded(environ={"LIVENESS_GUARD_ENABLED": text}).config
    assert by_file.guard.enabled is by_variable.guard.enabled is value


@pytest.mark.parametrize("raw", ["1", "0", '"true"', "[]"])
def test_what_is_neither_is_refused_in_the_file(raw: str, tmp_path: Path) -> None:
    told = refused(f"[guard]\nenabled = {raw}", tmp_path)
    assert told.startswith("guard.enabled is ")
    assert told.endswith(": it must be true or false")


@pytest.mark.parametrize("text", ["1", "True", "yes", "on", ""])
def test_what_is_neither_is_refused_in_the_environment(text: str) -> None:
    told = refused(environ={"LIVENESS_GUARD_ENABLED": text})
    where = f"guard.enabled is '{text}' (environment LIVENESS_GUARD_ENABLED)"
    assert told == f"{where}: it must be true or false"


def test_the_guard_holds_for_one_timeout_or_for_a_second_at_least(
    tmp_path: Path,
) -> None:
    for hold_s in (0, 1):
        config = loaded(f"[guard]\nhold_s = {hold_s}", tmp_path).config
        assert config.guard.hold_s == hold_s
    told = refused("[guard]\nhold_s = 0.999", tmp_path)
    assert told.endswith("it must be 0, for one timeout, or 1 to 86400 seconds")


def test_a_whole_number_will_do_where_a_fraction_may_stand(tmp_path: Path) -> None:
    timeout_s = loaded("timeout_s = 10", tmp_path).config.timeout_s
    assert (timeout_s, type(timeout_s)) == (10.0, float)


def test_a_choice_outside_the_list_is_refused_with_the_list() -> None:
    told = refused(environ={"LIVENESS_LOGGING_FORMAT": "xml"})
    assert told.endswith("it must be one of auto, text, json")


def test_a_very_long_value_is_shown_shortened() -> None:
    assert len(refused(timeout="9" * 10_000)) < 200


# --- the file as a file ---------------------------------------------------------------


def test_an_error_of_toml_names_file_and_line(tmp_path: Path) -> None:
    told = refused("slots = 3\n\ntimeout_s = = 3\n", tmp_path)
    assert told.startswith(f"{tmp_path / 'l.toml'}: not TOML: ")
    assert "at line 3" in told


def test_a_file_that_is_not_utf_8_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "l.toml"
    file.write_bytes(b"slots = 3\n# caf\xe9\n")
    told = refused(environ={"LIVENESS_CONFIG": str(file)})
    assert told == f"{file}: not UTF-8 (at line 2); correct it there"


@pytest.mark.parametrize("toml", ["a = " + "[" * 5_000, "slots = " + "9" * 5_000])
def test_a_file_meant_to_exhaust_the_parser_is_refused(
    toml: str, tmp_path: Path
) -> None:
    assert refused(toml, tmp_path).startswith(f"{tmp_path / 'l.toml'}: not ")


def test_a_file_beyond_the_limit_is_not_read_whole(tmp_path: Path) -> None:
    comment = "#" * (MAX_FILE_BYTES - 1)
    assert loaded(f"{comment}\n", tmp_path).config.slots == 30
    assert f"over {MAX_FILE_BYTES} bytes" in refused(f"{comment}#\n", tmp_path)


# --- addresses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:9874", "127.0.0.1", 9874),
        ("127.9.9.9:0", "127.9.9.9", 0),
        ("localhost:65535", "localhost", 65535),
        ("[::1]:80", "::1", 80),
    ],
)
def test_an_address_on_loopback_is_taken_apart(
    address: str, host: str, port: int
) -> None:
    http = loaded(http=address).config.http
    assert (http.host, http.port) == (host, port)
    assert http == HttpSettings(address=address)


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:80", "192.0.2.1:80", "[::]:80", "[::ffff:127.0.0.1]:1", "example.org:80"],
)
def test_an_address_beyond_loopback_needs_a_token(address: str) -> None:
    told = refused(http=address)
    assert told.startswith(f"http.address is '{address}': an address other than loop")
    assert "name that by http.token_file, or use 127.0.0.1" in told
    file = {"LIVENESS_HTTP_TOKEN_FILE": "/token"}
    http = loaded(http=address, environ=file).config.http
    assert (http.is_on_loopback, http.token_file) == (False, Path("/token"))


@pytest.mark.parametrize(
    "address",
    [
        "",
        "80",
        ":80",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:8o",
        "127.0.0.1:" + "9" * 5_000,
        "[127.0.0.1]:80",
        "::1:80",
    ],
)
def test_what_is_no_host_and_port_is_refused(address: str) -> None:
    assert "it must be HOST:PORT" in refused(http=address)


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("", set()),
        (" ", set()),
        ("a.example", {"a.example"}),
        ("A.example , b_1", {"a.example", "b_1"}),
        ("a" * 253, {"a" * 253}),
        (",".join(["a"] * 100), {"a"}),
    ],
)
def test_names_by_which_one_is_asked_are_taken_apart(
    hosts: str, names: set[str]
) -> None:
    config = loaded(environ={"LIVENESS_HTTP_HOSTS": hosts}, http="127.0.0.1:80").config
    assert config.http.names == {"localhost", "127.0.0.1"} | names


@pytest.mark.parametrize(
    "hosts",
    [
        ",",
        "a,",
        "a:80",
        "[::1]",
        "http://a",
        "*.example",
        "-a",
        "a.",
        "a b",
        "a\nb",
        "é.example",
        "a" * 254,
        ",".join(["a"] * 101),
    ],
)
def test_what_is_no_list_of_names_is_refused(hosts: str) -> None:
    told = refused(environ={"LIVENESS_HTTP_HOSTS": hosts})
    assert "it must be at most 100 names of hosts, without ports" in told


# --- lists of users and groups --------------------------------------------------------


@pytest.mark.parametrize("key", ["gateways", "watchers", "everyone", "admin"])
@pytest.mark.parametrize(
    "text", ["", "own", " own , @own", "*", "root,1000,@7,@chat_crew,svc.x-y,machine$"]
)
def test_a_right_is_given_to_users_and_groups(key: str, text: str) -> None:
    loaded_config = loaded(environ={f"LIVENESS_ACCESS_{key.upper()}": text})
    assert getattr(loaded_config.config.access, key) == text


@pytest.mark.parametrize(
    "text", ["@", "a b", "-x", "@@x", "a;b", "é", "x" * 65, "**", "@*", "u," * 1_001]
)
def test_what_is_no_list_of_users_and_groups_is_refused(text: str) -> None:
    told = refused(environ={"LIVENESS_ACCESS_GATEWAYS": text})
    assert "access.gateways" in told
    assert "users and @groups by name or number" in told


@pytest.mark.parametrize("text", ["", "gw-1=chat", "gw-1=chat, a=b=7,ein Tor=root"])
def test_a_name_is_tied_to_a_user(text: str) -> None:
    assert loaded(environ={"LIVENESS_ACCESS_NAMES": text}).config.access.names == (text)


@pytest.mark.parametrize(
    "text", ["gw-1", "=chat", "gw-1=", "gw-1=@crew", "gw-1=*", f"{'n' * 65}=chat"]
)
def test_what_ties_no_name_to_a_user_is_refused(text: str) -> None:
    assert "NAME=USER" in refused(environ={"LIVENESS_ACCESS_NAMES": text})


def test_a_name_is_tied_once() -> None:
    told = refused(environ={"LIVENESS_ACCESS_NAMES": "gw-1=a,gw-1=b"})
    assert "one name is one user's" in told


@pytest.mark.parametrize("text", ["0640", "660", "0o660", "0777", ""])
def test_sockets_have_one_of_three_modes(text: str) -> None:
    told = refused(environ={"LIVENESS_SOCKET_MODE": text})
    assert told.endswith("it must be one of 0600, 0660, 0666")


@pytest.mark.parametrize("text", ["@crew", "a,b", "*", "-"])
def test_the_sockets_have_one_group(text: str) -> None:
    assert "group's name or number" in refused(environ={"LIVENESS_SOCKET_GROUP": text})


# --- paths ----------------------------------------------------------------------------


def path_of(length: int, name: str = "gateway.sock") -> str:
    return "/" + "a" * (length - len(name) - 2) + "/" + name


def test_a_socket_path_of_107_bytes_is_allowed_and_one_of_108_is_not() -> None:
    path = path_of(MAX_SOCKET_PATH_BYTES)
    assert loaded(socket=path).config.socket.path == Path(path)
    told = refused(socket=path_of(MAX_SOCKET_PATH_BYTES + 1))
    assert "takes 108 bytes, and the path of a socket has room for 107" in told


def test_the_bytes_of_a_socket_path_count_and_not_its_characters() -> None:
    assert "takes 109 bytes" in refused(socket=path_of(107).replace("aa", "éé", 1))


def test_a_short_name_leaves_room_for_the_admin_socket_beside_it() -> None:
    longest = path_of(MAX_SOCKET_PATH_BYTES - len("admin.sock") + 1, "s")
    admin = loaded(socket=longest).config.socket.admin_path
    assert (admin.name, len(os.fsencode(admin))) == ("admin.sock", 107)
    assert "takes 108 bytes" in refused(socket=longest.replace("aa", "aaa", 1))


def test_a_path_that_may_be_left_out_is_none_or_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text, path in (("", None), ("token", tmp_path / "token")):
        by_file = loaded(f'[http]\ntoken_file = "{text}"\n', tmp_path)
        by_variable = loaded(environ={"LIVENESS_HTTP_TOKEN_FILE": text})
        for found in (by_file, by_variable):
            assert found.config.http.token_file == path
    assert "a path; empty: no token" in refused("[http]\ntoken_file = 3\n", tmp_path)
    told = refused(environ={"LIVENESS_HTTP_TOKEN_FILE": "/a\0b"})
    assert told.startswith("http.token_file is ")


@pytest.mark.parametrize("path", ["", "/run/admin.sock", "/a\0b"])
def test_a_path_that_no_socket_can_have_is_refused(path: str) -> None:
    assert refused(socket=path).startswith("socket.path is ")


def test_a_relative_path_is_taken_from_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert loaded(state="state").config.state.dir == tmp_path / "state"


def test_the_default_paths_are_the_systems_for_root_and_the_users_for_others() -> None:
    def paths(uid: int, **environ: str) -> tuple[str, str]:
        config = load(environ=environ, uid=uid, default_file=Path("/absent")).config
        return str(config.socket.path), str(config.state.dir)

    assert paths(0) == ("/run/liveness/gateway.sock", "/var/lib/liveness")
    assert paths(SOMEBODY, HOME="/h", XDG_RUNTIME_DIR="/r", XDG_STATE_HOME="/s") == (
        "/r/liveness/gateway.sock",
        "/s/liveness",
    )
    assert paths(SOMEBODY, HOME="/h", TMPDIR="/t", XDG_RUNTIME_DIR="relative") == (
        "/t/liveness-1000/gateway.sock",
        "/h/.local/state/liveness",
    )


def test_without_a_home_the_state_needs_a_name() -> None:
    assert "name a folder: --state" in refused(environ={"HOME": ""})


def private(tmp_path: Path, uid: int) -> str:
    """The default socket of a user without a runtime folder."""
    environ = {"HOME": "/h", "TMPDIR": str(tmp_path)}
    config = load(environ=environ, uid=uid, default_file=Path("/absent")).config
    return str(config.socket.path)


def test_the_private_folder_is_used_if_it_is_the_users_and_closed(
    tmp_path: Path,
) -> None:
    # Whoever runs the test owns what it makes; as root it can be given away.
    uid = os.geteuid() or SOMEBODY
    folder = tmp_path / f"liveness-{uid}"
    folder.mkdir(mode=0o700)
    os.chown(folder, uid, -1)
    assert private(tmp_path, uid) == str(folder / "gateway.sock")


@pytest.mark.parametrize(
    ("mode", "owner", "wrong"),
    [
        (0o750, "user", "is open to others"),
        (0o702, "user", "is open to others"),
        (0o700, "another", "belongs to user"),
    ],
)
def test_the_private_folder_is_refused_if_others_could_use_it(
    mode: int, owner: str, wrong: str, tmp_path: Path
) -> None:
    uid = os.geteuid() or SOMEBODY
    asked = uid if owner == "user" else uid + 1
    folder = tmp_path / f"liveness-{asked}"
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, uid, -1)
    with pytest.raises(ConfigError, match=f"{folder} {wrong}"):
        private(tmp_path, asked)


def test_the_private_folder_is_refused_if_it_is_a_link_to_a_good_one(
    tmp_path: Path,
) -> None:
    uid = os.geteuid() or SOMEBODY
    good = tmp_path / "good"
    good.mkdir(mode=0o700)
    (tmp_path / f"liveness-{uid}").symlink_to(good)
    with pytest.raises(ConfigError, match="is not a folder"):
        private(tmp_path, uid)


def test_the_sockets_folder_is_made_and_one_that_is_there_is_left_alone(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "made"
    make_socket_folder(folder / "gateway.sock")
    assert folder.stat().st_mode & 0o777 == (0o700 if os.geteuid() else 0o755)
    folder.chmod(0o711)
    make_socket_folder(folder / "gateway.sock")
    assert folder.stat().st_mode & 0o777 == 0o711


def test_a_sockets_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be made \(No such file"):
        make_socket_folder(tmp_path / "not" / "there" / "gateway.sock")


def test_a_client_that_names_the_socket_reads_no_other_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVENESS_NO_SUCH_THING", "1")
    assert socket_path(str(tmp_path / "s")) == tmp_path / "s"
    with pytest.raises(ConfigError, match="LIVENESS_NO_SUCH_THING"):
        socket_path(None)
    with pytest.raises(ConfigError, match="flag --socket"):
        socket_path(path_of(108))


# --- documents as a contract ----------------------------------------------------------


def uncommented(text: str) -> str:
    return re.sub(r"^#(?=[a-z_]+ = )", "", text, flags=re.MULTILINE)


def test_the_example_file_as_it_is_changes_nothing(tmp_path: Path) -> None:
    assert tomllib.loads(EXAMPLE.read_text()) == {
        setting.section: {} for setting in SETTINGS if setting.section
    }
    assert loaded(EXAMPLE.read_text(), tmp_path).config == loaded().config


def test_the_example_file_uncommented_has_every_setting_at_its_default(
    tmp_path: Path,
) -> None:
    found = loaded(uncommented(EXAMPLE.read_text()), tmp_path)
    assert set(found.sources.values()) == {str(tmp_path / "l.toml")}
    as_root = load(environ={}, uid=0, default_file=Path("/absent"))
    assert found.config == as_root.config


@pytest.mark.parametrize("setting", SETTINGS, ids=NAMES)
def test_the_example_file_gives_each_setting_its_meaning_and_bounds(
    setting: Setting,
) -> None:
    section = EXAMPLE.read_text().split(
        f"\n[{setting.section}]\n" if setting.section else "\0"
    )[-1]
    (comment,) = re.findall(rf"((?:^# .*\n)+)#{setting.key} = ", section, re.MULTILINE)[
        :1
    ]
    told = re.sub(r"\s*\n# ?", " ", comment).lower()
    assert f"{setting.allowed.lower()}." in told
    assert setting.flag in told
    assert set(re.findall(r"\w+", setting.meaning.lower())) <= set(
        re.findall(r"\w+", told)
    )


def test_what_check_config_prints_is_a_file_of_the_same_settings(
    tmp_path: Path,
) -> None:
    odd = loaded("timeout_s = 7\n", tmp_path, socket='/tmp/a "b"\\c\x7f é/s')
    again = loaded(effective(odd), tmp_path)
    assert again.config == odd.config
    assert "timeout_s = 7.0  # " in effective(odd)
    assert "# in effect: 0.233333 s" in effective(odd)

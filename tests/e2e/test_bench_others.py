"""What the bench measures the sidecar beside: the real programs, and what it says."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from liveness import cli
from liveness.bench import OTHERS, QUICK, Options, full
from liveness.bench.borders import borders
from liveness.bench.cost import ratios
from liveness.bench.drain import Drain
from liveness.bench.figures import Figure
from liveness.bench.load import LoadError
from liveness.bench.others import KINDS, opened, plan
from liveness.bench.redis import RedisServer, command
from liveness.bench.server import ended
from liveness.bench.systems import Stream

OURS_ONLY = [f"--without={name}" for name in OTHERS]
PATIENCE_S = 30


# --- what is asked for


@pytest.mark.parametrize(
    ("name", "program", "package"),
    [
        ("redis", "redis-server", "redis-server"),
        ("etcd", "etcd", "etcd-server"),
    ],
)
def test_a_program_that_is_not_installed_is_named_with_its_package_and_the_flag(
    name: str,
    program: str,
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    without = [flag for flag in OURS_ONLY if not flag.endswith(f"={name}")]
    assert cli.main(["bench", "cost", "--quick", *without]) == 2
    assert capsys.readouterr().err == (
        f"liveness: {name} is measured too, and {program} is not installed: "
        f"apt install {package}, or leave it out with --without {name}\n"
    )


def test_a_system_to_leave_out_that_is_none_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["bench", "cost", "--without", "memcached"]) == 2
    told = capsys.readouterr().err
    assert "memcached" in told
    assert all(name in told for name in OTHERS)


@pytest.mark.parametrize("sizes", ["many", "99", "1000,", "10000001"])
def test_sizes_that_are_no_numbers_of_users_are_refused(
    sizes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "cost", "--sizes", sizes]) == 2
    assert "is not numbers from 100 to 10000000" in capsys.readouterr().err


def test_what_does_not_fit_is_left_out_and_said() -> None:
    it = plan(replace(QUICK, sizes=(100, 20_000, 10**12), without=("redis", "zset")))
    assert it.runs == [
        (users, name)
        for users in (100, 20_000)
        for name in ("liveness", "reference", "etcd", "asyncio")
        if (users, name) != (20_000, "etcd")
    ]
    redis, zset, etcd, memory = it.left_out
    assert (redis, zset) == ("redis: by --without", "zset: by --without")
    assert etcd == "etcd, 20,000 users: it is given 10,000 at most"
    assert memory.startswith("1,000,000,000,000 users: there is memory for ")


def test_the_systems_of_the_help_are_those_that_can_be_measured() -> None:
    assert [*KINDS] == ["liveness", *OTHERS]


# --- how they compare

MILLION, FOUR = 1_000_000, 4_000_000
COSTS = [
    Figure("cost", name, value, unit, system=system, users=users)
    for system, users, singles_ns, batches_ns, memory_bytes in (
        ("liveness", 100_000, 250.0, 100.0, 200.0),
        ("liveness", MILLION, 300.0, 120.0, 210.0),
        ("redis", MILLION, 1_500.0, math.nan, 140.0),
        ("liveness", FOUR, 400.0, 150.0, 220.0),
        ("redis", FOUR, 1_600.0, math.nan, 110.0),
    )
    for name, value, unit in (
        ("server CPU an event, one-uid frames", singles_ns, "ns"),
        ("server CPU an event, batches", batches_ns, "ns"),
        ("memory a user", memory_bytes, "B"),
    )
    if math.isfinite(value)
]
SINGLES = "SETEX's server CPU an event / ours, one-uid frames"
BATCHES = "SETEX's server CPU an event / ours, batches"
MEMORY = "memory a user / redis-server's"
GROWTH = "server CPU an event / that with 100,000, batches"


def compared(
    figures: Sequence[Figure], options: Options
) -> dict[tuple[int | None, str], tuple[float, bool | None]]:
    return {
        (it.users, it.name): (it.value, it.is_met) for it in ratios(figures, options)
    }


def test_a_ratio_is_how_many_times_ours_redis_costs_and_its_memory_in_ours() -> None:
    assert compared(COSTS, full(MILLION)) == {
        (MILLION, SINGLES): (5.0, True),
        (MILLION, BATCHES): (12.5, True),
        (MILLION, MEMORY): (1.5, False),
        (FOUR, SINGLES): (4.0, None),
        (FOUR, BATCHES): (1_600.0 / 150.0, None),
        (FOUR, MEMORY): (2.0, None),
        (FOUR, GROWTH): (1.5, True),
    }


def test_a_promise_that_was_not_measured_is_missed_unless_redis_was_left_out() -> None:
    options = replace(full(MILLION), sizes=(10_000,))
    found = compared([], options)
    assert {*found} == {
        *((MILLION, name) for name in (SINGLES, BATCHES, MEMORY)),
        (FOUR, GROWTH),
    }
    assert all(math.isnan(value) and met is False for value, met in found.values())
    assert {*compared([], replace(options, without=("redis",)))} == {(FOUR, GROWTH)}
    assert compared([], full(100_000)) == {}
    assert (MILLION, SINGLES) in compared([], replace(full(100), sizes=(MILLION,)))


# --- the real ones


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_each_system_takes_signs_of_life_and_tells_who_fell_silent(
    name: str, tmp_path: Path
) -> None:
    with opened(name, tmp_path, 20) as system:
        system.make_known(range(10, 20))
        for stream in (system.singles(range(10, 20)), system.batches(range(10, 20))):
            if stream is not None:
                system.write(stream)
        system.silence(7, 2)
        told = system.told(1, until=time.perf_counter() + PATIENCE_S)
        assert [one["uid"] for _, them in told for one in them] == ["user-000000000007"]
        assert system.program.memory_mb() > 1
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_of_each_system_there_is_what_it_costs_and_how_late_it_tells(
    name: str, tmp_path: Path
) -> None:
    report, folder = tmp_path / "report", tmp_path / "folder"
    folder.mkdir()
    flags = ["--quick", "--folder", str(folder), "--json", str(report)]
    flags += [flag for flag in OURS_ONLY if not flag.endswith(f"={name}")]
    assert cli.main(["bench", "cost", "lateness", *flags]) in (0, 1)
    found: dict[str, dict[str, float]] = {}
    for one in json.loads(report.read_text())["figures"]:
        found.setdefault(one["system"], {})[one["name"]] = one["value"]
    assert {*found} == {"liveness", name}
    assert {"server CPU an event, one-uid frames", "memory a user"} <= {*found[name]}
    is_told = "told within 4 s" in found[name]
    assert is_told == (name != "reference")
    assert found[name].get("told too early", 0) == 0
    assert [*folder.iterdir()] == []


@pytest.mark.slow
def test_a_reply_that_is_an_error_ends_the_run(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    with ended(server):
        server.start()
        with server.link() as link, pytest.raises(LoadError, match="-ERR unknown"):
            link.write(Stream(command("SETX", "ada"), 1))


@pytest.mark.slow
def test_a_drain_reads_all_that_is_written(tmp_path: Path) -> None:
    drain = Drain(tmp_path)
    with ended(drain):
        drain.start()
        before_s = drain.cpu_s()
        drain.write(Stream(bytes(10_000_000), 0))
        assert drain.cpu_s() > before_s


@pytest.mark.slow
def test_the_hours_a_wheel_is_busy_with_a_day_are_those_that_are_watched() -> None:
    """It raises otherwise."""
    figures = borders(10_000, lambda _what, _share: None)
    assert all(figure.value > 0 for figure in figures)


@pytest.mark.slow
def test_at_a_high_rate_frames_go_together_and_nobody_is_wronged(
    tmp_path: Path,
) -> None:
    report = tmp_path / "report"
    flags = ["--rate", "6000", "--json", str(report)]
    assert cli.main(["bench", "steady", "--quick", *flags]) in (0, 1)
    content = json.loads(report.read_text())
    found = {one["name"]: one["value"] for one in content["figures"]}
    assert found["early offlines"] == found["false offlines"] == found["missing"] == 0

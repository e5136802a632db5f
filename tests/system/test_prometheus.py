"""A real Prometheus on real sidecars: every expression of dashboard and rules has data.

Two sidecars live through a scene in which everything happens that a panel is there to
show. Each panel has its cause in `CAUSES`, and must show it. `hasty` is a sidecar with a
fault, for what must never be seen of any other. Prometheus has the configuration and the
rules of `deploy/prometheus`, with shorter intervals and the scene's sidecars as targets;
the dashboard's expressions are filled in as Grafana does.
"""

import json
import math
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from time import time_ns
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from liveness.cluster.format import keys_of
from tests.deploy import test_monitoring as monitoring
from tests.deploy.test_monitoring import DASHBOARD, DEPLOYED
from tests.helpers.cluster_state import PARTITIONS
from tests.helpers.needs import require
from tests.helpers.processes import promtool
from tests.helpers.redis_servers import RedisServer, redis_server
from tests.system.gateway import Gateway
from tests.system.sidecar import SOON_S, Sidecar, eventually
from tests.system.test_descriptors import REFUSED, comers, few_files
from tests.system.test_disk import crowd, disk_full
from tests.system.test_http_token import BEARER, token_file
from tests.system.test_newer import clocks, monotonic
from tests.system.test_streams import streaming
from tests.system.test_webhooks import secret_in

SCRAPE_S: Final = 0.5
# What Grafana takes where a pixel of the panel is less than a scrape apart.
RATE_S: Final = 4 * SCRAPE_S
STEP_S: Final = SCRAPE_S / 2
MAX_DEAD: Final = 2
STORM: Final = 150  # users of one gateway, all silent at once
LOST: Final = 30  # users of a gateway that starts anew
MANY: Final = 20_000
SELDOM_S: Final = 1.1  # more than half of their timeout
UNATTENDED: Final = "liveness_unattended_seconds_total"
LEASE_S: Final = 3  # the shortest
SETTLE_S: Final = 3
TAIL: Final = 1_000  # the shortest
ABSENCE_S: Final = 4.0  # more than the 1 % of five minutes that is alarmed


PANELS: Final[dict[str, list[str]]] = {
    panel["title"]: [target["expr"] for target in panel["targets"]]
    for panel in monitoring.PANELS
}


def expressions(rules: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: " ".join(rule["expr"].split()) for name, rule in rules.items()}


# --- Prometheus and Grafana ---------------------------------------------------------

Labels = frozenset[tuple[str, str]]


class Sample(NamedTuple):
    labels: Labels
    value: float


def now_s() -> float:
    return time_ns() / 1e9


class Prometheus:
    """A server with a folder of its own, which scrapes these sidecars.

    Args:
        folder: An empty one.
        sidecars: They are ready.
        token: A file with the token that a proxy in front of them would want.
    """

    def __init__(self, folder: Path, sidecars: list[Sidecar], token: Path) -> None:
        for program in ("prometheus", "promtool"):
            require(program, "prometheus")
        self.began_s = now_s()
        config = folder / "prometheus.yml"
        config.write_text(_configuration(sidecars, token))
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
                "--log.format=json",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._log: list[dict[str, Any]] = []
        self._has_begun = threading.Event()
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()

    def __enter__(self) -> Self:
        self._has_begun.wait(SOON_S)
        listening = (line for line in self._log if line.get("msg") == "Listening on")
        addresses = [line["address"] for line in listening]
        if not addresses or self._process.poll() is not None:
            self.__exit__()
            raise AssertionError(f"Prometheus is not ready: {self._log}")
        self._api = f"http://{addresses[0]}/api/v1"
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.kill()
        self._process.wait(SOON_S)
        self._reader.join(SOON_S)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in map(json.loads, self._process.stderr):
            self._log.append(line)
            if line.get("msg") == "Server is ready to receive web requests.":
                self._has_begun.set()
        self._has_begun.set()  # it has ended

    def ask(self, path: str, **parameters: object) -> Any:
        """The answer of a page of its API; a refused expression is an error."""
        wanted = urlencode(parameters, doseq=True)
        with urlopen(f"{self._api}/{path}?{wanted}") as answer:
            return json.load(answer)["data"]

    def now(self, expression: str) -> list[Sample]:
        found = self.ask("query", query=expression)
        assert found["resultType"] == "vector", expression
        return [Sample(_labels(one), float(one["value"][1])) for one in found["result"]]

    def between(self, expression: str, begin_s: float, end_s: float) -> list[Sample]:
        """Every value of an expression in this time, `STEP_S` apart; in order of time."""
        found = self.ask(
            "query_range", query=expression, start=begin_s, end=end_s, step=STEP_S
        )
        points = sorted(
            (at, Sample(_labels(one), float(value)))
            for one in found["result"]
            for at, value in one["values"]
        )
        return [sample for _, sample in points]

    def until(self, expression: str) -> None:
        """Waits until Prometheus has seen that this is so."""

        def is_so() -> bool:
            # It knows nothing new before its next scrape.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(SCRAPE_S / 10)
                raise AssertionError("Prometheus has ended")
            return bool(self.now(expression))

        eventually(is_so, lambda: f"never: {expression}")

    def values(self, query: str) -> list[str]:
        """The choices of a variable, as Grafana asks for them."""
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert asked, query
        found: list[str] = self.ask(f"label/{asked[2]}/values", **{"match[]": asked[1]})
        return found


def is_new(before: list[Sample], after: list[Sample]) -> bool:
    """Whether there is a value that was not there before, of an old series or a new one."""
    old = {(one.labels, str(one.value)) for one in before}
    return any((one.labels, str(one.value)) not in old for one in after)


def has_data(samples: list[Sample]) -> bool:
    """Whether there is a number among them."""
    return any(math.isfinite(one.value) for one in samples)


def _labels(one: dict[str, Any]) -> Labels:
    return frozenset(one["metric"].items())


def _configuration(sidecars: list[Sidecar], token: Path) -> str:
    config = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(
        ("scrape_interval", "evaluation_interval"), f"{SCRAPE_S * 1000:.0f}ms"
    )
    config["rule_files"] = [str(DEPLOYED / name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    targets = [sidecar.line("ready")["http"] for sidecar in sidecars]
    job["static_configs"] = [{"targets": targets}]
    job["authorization"] = {"credentials_file": str(token)}
    return yaml.safe_dump(config)


def filled_in(expression: str, chosen: dict[str, str], range_s: float) -> str:
    """An expression as Grafana sends it."""
    own = {"__rate_interval": f"{RATE_S * 1000:.0f}ms", "__range": f"{range_s:.0f}s"}
    values = own | chosen
    return re.sub(r"\$(\w+)", lambda name: values[name[1]], expression)


def chosen_all(values: Callable[[str], list[str]]) -> dict[str, str]:
    """What Grafana puts in for each variable of the dashboard where all is chosen."""
    chosen: dict[str, str] = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            asked = filled_in(variable["query"]["query"], chosen, 0)
            each = [_escaped(value) for value in values(asked)]
            name = variable["name"]
            assert each, name
            chosen[name] = variable.get("allValue") or f"({'|'.join(each)})"
    return chosen


def _escaped(value: str) -> str:
    """As Grafana's Prometheus data source writes a choice among several."""
    doubled = value.replace("\\", r"\\\\")
    return re.sub(r"[$^*{}\[\]+?.()|]", lambda sign: rf"\\{sign[0]}", doubled)


class Receiver(ThreadingHTTPServer):
    """Answers each request by this status."""

    daemon_threads = True
    status = 204

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)

    def settings(self, folder: Path) -> Path:
        """A file with a webhook to it."""
        path = folder / "outlets.toml"
        path.write_text(
            f'[webhooks.mail]\nurl = "http://127.0.0.1:{self.server_port}/"\n'
            f'secret_file = "{secret_in(folder)}"\n'
            f"settle_s = {SETTLE_S}\n"
        )
        return path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as receiver:
        serving = threading.Thread(target=receiver.serve_forever)
        serving.start()
        yield receiver
        receiver.shutdown()
        serving.join()


@dataclass
class Scene:
    """Two sidecars, those who speak to them, and the Prometheus that watches."""

    sidecar: Sidecar
    hasty: Sidecar
    prometheus: Prometheus
    stack: ExitStack
    redis: RedisServer
    folder: Path  # of a third sidecar
    cluster: dict[str, Any]  # its settings
    receiver: "Receiver"  # of the first sidecar's webhook
    calm: tuple[float, float] = (0.0, 0.0)
    ended: float = 0.0
    times: dict[str, tuple[float, float]] = field(default_factory=dict)

    def until(self, expression: str) -> None:
        self.prometheus.until(expression)

    def at(self, expression: str, moment_s: float) -> list[Sample]:
        return self.prometheus.between(expression, moment_s, moment_s)

    def shown(self, expression: str) -> str:
        """An expression of the dashboard as Grafana would send it now."""
        chosen = chosen_all(self.prometheus.values)
        return filled_in(expression, chosen, now_s() - self.prometheus.began_s)


# --- what happens -------------------------------------------------------------------


def users_come(scene: Scene) -> None:
    gateway = scene.stack.enter_context(Gateway(scene.sidecar, "gw-1"))
    users = [(f"user-{number}", number) for number in range(20)]
    gateway.login(*users)
    gateway.talk(*users[:10])
    scene.stack.enter_context(scene.sidecar.watcher())
    scene.until('liveness_events_total{event="keepalive"} > 20')
    scene.until('liveness_links{role="watcher"} == 1')
    scene.until("liveness_gateway_users == 20")


def users_go(scene: Scene) -> None:
    quiet = scene.sidecar.gateway("quiet", timeout=1)
    quiet.send("login", ["q1", "q2", "q3"], {"conn": [1, 2, 3]})
    former = scene.sidecar.gateway("former")
    former.apply("login", "moves", {"conn": 1})
    other = scene.sidecar.gateway("other")
    other.apply("login", "moves", {"conn": 2})
    former.apply("keepalive", "moves", {"conn": 1})
    assert len(quiet.take(3)) == 3
    scene.until('liveness_offline_total{reason="silence"} == 3')
    scene.until('sum(liveness_events_ignored_total{why!="offline"}) > 0')
    scene.until("liveness_moved_total == 1")


def users_speak_seldom(scene: Scene) -> None:
    # Enough for a few rounds of activity to include users that are sampled; and too few
    # for a storm when they go.
    users = [f"seldom-{number}" for number in range(STORM - 10)]
    gateway = scene.sidecar.gateway("seldom", timeout=2)
    gateway.send("login", users)
    # Attended time is what counts: on a busy machine a silence is shorter than it was.
    known = 'liveness_gateway_interval_seconds{gateway="seldom"} > 1'
    while not scene.prometheus.now(known):
        gateway.send("keepalive", users)
        # Some scrapes later: so often they speak.
        spoken = now_s()
        scene.until(f"min(timestamp(liveness_users_online)) > {spoken + SELDOM_S}")
    gateway.apply("logout", users)


def somebody_watches(scene: Scene) -> None:
    with streaming(scene.sidecar, "/v1/live", BEARER):
        scene.until('liveness_streams{stream="live"} == 1')


def a_gateway_acknowledges_late(scene: Scene) -> None:
    gateway = scene.sidecar.gateway("late", timeout=1)
    gateway.send("login", ["l1", "l2"])
    seq = gateway.take(2)[-1]["seq"]
    scene.until('liveness_link_unacked{gateway="late"} == 2')
    gateway.send("ack", seq)
    scene.until('liveness_link_unacked{gateway="late"} == 0')


def a_gateway_is_mute(scene: Scene) -> None:
    scene.sidecar.gateway("mute", timeout=2, ping=0.2).send("login", ["m1", "m2"])
    scene.until('liveness_users_held{why="mute"} == 2')
    scene.until('liveness_gateway_mute_total{gateway="mute"} == 1')


def a_gateway_has_another_clock(scene: Scene) -> None:
    gateway = scene.sidecar.gateway("elsewhere", clock=clocks(1_000))
    gateway.send("login", "u", {"began": monotonic() + 1_000})
    gateway.send("logout", "u")
    scene.until('liveness_began_unused_total{why="other_clock"} == 1')


def answers_are_left_unread(scene: Scene) -> None:
    watcher = scene.sidecar.watcher("greedy")
    for _ in range(20):
        watcher.send("ping", "x" * 60_000)
    scene.until('liveness_unread_bytes{where="memory"} > 0')
    other = scene.sidecar.watcher("never done")
    other.send_bytes(b"\x92\xa4ping")
    scene.until("liveness_unfinished_bytes > 0")
    other.close()
    watcher.close()
    scene.until('sum(liveness_unread_bytes{where="memory"}) == 0')


def a_socket_is_removed(scene: Scene) -> None:
    scene.sidecar.socket.unlink()
    scene.until('liveness_files_lost_total{file="gateway"} == 1')


def a_page_of_the_log_is_damaged(scene: Scene) -> None:
    with closing(sqlite3.connect(scene.sidecar.database)) as db, db:
        db.execute(
            "update log set crc = crc + 1 where last = (select min(last) from log)"
        )
    watcher = scene.sidecar.watcher("behind", after=0)
    assert watcher.take(1)[0]["kind"] == "gap"
    scene.until("liveness_log_damaged_records > 0")


def a_gateway_starts_anew(scene: Scene) -> None:
    gateway = scene.sidecar.gateway("anew")
    gateway.apply("login", [f"lost-{number}" for number in range(LOST)])
    scene.until(f'liveness_gateway_users{{gateway="anew"}} == {LOST}')
    scene.sidecar.gateway("anew", fresh=True)
    scene.until(f'liveness_offline_total{{reason="gateway_lost"}} >= {LOST}')


def a_storm(scene: Scene) -> None:
    gateway = scene.sidecar.gateway("storm", timeout=1)
    gateway.send("login", [f"s{number}" for number in range(STORM)])
    scene.until("liveness_storms_total == 1")
    gateway.take(STORM)
    scene.until(f'liveness_offline_total{{reason="silence"}} >= {STORM}')


def frames_are_refused(scene: Scene) -> None:
    gateway = scene.sidecar.gateway("wrong")
    for _ in range(50):
        gateway.send("nonsense")
    for _ in range(10):
        gateway.send("login", [f"w{number}" for number in range(STORM + 1)])
    gateway.send("ping", 0)
    while (frame := gateway.receive()) and frame[0] == "error":
        pass
    scene.until('liveness_limits_met_total{limit="limits.max_batch"} == 10')
    scene.until('liveness_frames_refused_total{code="unknown-frame"} == 50')


def requests_are_refused(scene: Scene) -> None:
    for _ in range(40):
        scene.sidecar.ask("http", "GET", "/v1/timers")
    scene.until('liveness_http_refused_total{why="token"} > 0')


def timers_fire_and_fail(scene: Scene) -> None:
    gateway = scene.sidecar.gateway("timers", kinds=["timer"])
    gateway.send("after", "later", 1_800)
    gateway.send("after", "good", 0.1)
    gateway.send("after", "bad", 0.1)
    gateway.take(2)
    gateway.send("done", "good")
    gateway.send("fail", "bad", "no route", {"final": True})
    scene.until('liveness_timers{state="failed"} == 1')
    scene.until('liveness_timers{state="done"} == 1')
    scene.until("liveness_timer_lateness_seconds_count == 2")


def a_sidecar_fires_early(scene: Scene) -> None:
    gateway = scene.hasty.gateway("gw", timeout=2)
    gateway.send("login", "wronged")
    gateway.take(1)
    scene.until("liveness_early_offline_total == 1")


def a_sidecar_is_stopped(scene: Scene) -> None:
    gateway = scene.hasty.gateway("timers", kinds=["timer"])
    # Short ones, until a rate has a scrape before and one after.
    while not scene.prometheus.now(f"rate({UNATTENDED}[{RATE_S * 1000:.0f}ms]) > 0.2"):
        scene.hasty.signal(signal.SIGSTOP)
        try:
            scene.until("up == 0")
        finally:
            scene.hasty.signal(signal.SIGCONT)
        scene.until("min(up) == 1")
    gateway.apply("after", "due", 1)
    # The highest lag is shown for a while, and a lost host was stopped just before: this
    # absence is the longer one.
    (unattended,) = scene.prometheus.now(f"max({UNATTENDED})")
    (lag,) = scene.prometheus.now("max(liveness_hand_lag_seconds)")
    absence_s = max(ABSENCE_S, lag.value + 1)
    began = now_s()
    scene.hasty.signal(signal.SIGSTOP)
    try:
        scene.until("up == 0")
        eventually(lambda: now_s() > began + absence_s, within_s=absence_s + SOON_S)
    finally:
        scene.hasty.signal(signal.SIGCONT)
    scene.until(f"{UNATTENDED} > {unattended.value + 3}")
    scene.until(f"liveness_hand_lag_seconds > {max(3, lag.value)}")
    gateway.take(1)
    scene.until("liveness_timer_lateness_seconds_sum > 1")


def the_disk_is_full(scene: Scene) -> None:
    gateway = scene.sidecar.gateway("full")
    with disk_full(scene.sidecar):
        gateway.send("login", crowd("full", 100))
        scene.until("liveness_log_pending >= 100")
        # A rate takes two scrapes, and the first may see several failures already.
        failures = f'liveness_write_failures_total{{what="log"}}[{RATE_S * 1000:.0f}ms]'
        scene.until(f"rate({failures}) > 0")
        scene.until("liveness_ready == 0")
    scene.until("min(liveness_ready) == 1")


def no_file_can_be_opened(scene: Scene) -> None:
    with few_files(scene.sidecar, 2):
        crowd = comers(scene.sidecar, "gateway")
        # Prometheus may need a new connection itself: it asks when there are files again.
        scene.sidecar.line(REFUSED, socket="gateway")
        for connection in crowd:
            connection.close()
    scene.until('liveness_accepts_put_off_total{socket="gateway"} > 0')


def very_many_come(scene: Scene) -> None:
    gateway = scene.sidecar.gateway("many")
    for begin in range(0, MANY, STORM):
        gateway.send("login", [f"many-{begin + number}" for number in range(STORM)])
    gateway.sync()
    scene.until(f"liveness_users_online > {MANY}")


def users_come_one_by_one(scene: Scene) -> None:
    gateway = scene.sidecar.gateway("singly")
    applied = 'liveness_cluster_calls_total{function="apply",answer="ok"}'
    rate, numbers = f"rate({applied}[{RATE_S * 1000:.0f}ms])", count()
    while not scene.prometheus.now(f"{rate} > 5"):
        gateway.apply("login", f"singly-{next(numbers)}")


def redis_has_other_sessions(scene: Scene) -> None:
    key = keys_of("lv", 0).users
    scene.redis("HDEL", key, scene.redis("HKEYS", key)[0])
    scene.until("liveness_cluster_audit_mismatches_total == 1")
    scene.until("sum(liveness_cluster_partitions{mode!='following'}) == 0")


def redis_is_away(scene: Scene) -> None:
    gateway = scene.sidecar.gateway("unshared")
    scene.redis.kill()
    gateway.apply("login", [f"unshared-{number}" for number in range(20)])
    scene.until("max(liveness_cluster_up) == 0")
    scene.until("max(liveness_cluster_lag_records) > 0")
    scene.until("liveness_cluster_lag_seconds > 1")
    scene.until("liveness_cluster_lease_age_seconds > liveness_cluster_lease_seconds")
    scene.redis.start()
    scene.until("min(liveness_cluster_up) == 1")
    scene.until("sum(liveness_cluster_partitions{mode!='following'}) == 0")


def a_host_is_lost(scene: Scene) -> None:
    gateway = scene.hasty.gateway("lost")
    gateway.apply("login", ["gone-1", "gone-2"])
    # What Redis does not have yet cannot be reaped.
    eventually(lambda: not scene.hasty.metric("liveness_cluster_lag_records"))
    scene.until('liveness_gateway_users{gateway="lost"} == 2')
    scene.hasty.signal(signal.SIGSTOP)
    try:
        scene.until("liveness_cluster_fences_total > 0")
        scene.until("liveness_cluster_sessions_reaped_total > 0")
    finally:
        scene.hasty.signal(signal.SIGCONT)
    scene.until("sum(liveness_cluster_partitions{mode!='following'}) == 0")


def a_name_is_taken(scene: Scene) -> None:
    other = scene.stack.enter_context(Sidecar(scene.folder))
    other.start(**scene.cluster, cluster_host="second")
    replaced = 'liveness_cluster_calls_total{function="begin",answer="replaced"} > 0'
    scene.until(replaced)
    scene.until('liveness_cluster_partitions{mode="beginning"} > 0')
    other.kill()


def somebody_asks_about_all_hosts(scene: Scene) -> None:
    asked = b'{"uids": ["user-1"]}'
    scene.sidecar.ask("http", "POST", "/v1/cluster/where", asked, **BEARER)
    scene.until('liveness_cluster_questions_total{answer="answered"} > 0')


def users_are_soon_back(scene: Scene) -> None:
    users = [f"tunnel-{number}" for number in range(STORM)]
    gateway = scene.sidecar.gateway("tunnel")
    gateway.send("login", users, {"conn": [*range(1, STORM + 1)]})
    gateway.apply("logout", users)
    scene.until("liveness_outlet_settling > 50")
    gateway.send("login", users, {"conn": [*range(STORM + 1, 2 * STORM + 1)]})
    scene.until("liveness_outlet_records_damped_total > 0")
    scene.until("liveness_outlet_settling_overflows_total > 0")


def a_receiver_refuses_records(scene: Scene) -> None:
    scene.receiver.status = 422
    scene.sidecar.gateway("unwanted").send("login", ["x1", "x2", "x3"])
    scene.until(f"liveness_outlet_dead_letters == {MAX_DEAD}")
    scene.until("liveness_outlet_dead_letters_deleted_total > 0")
    scene.receiver.status = 204


def a_receiver_is_away(scene: Scene) -> None:
    """A receiver is away until its records must be read from disk, where some are damaged."""
    scene.until("liveness_outlet_lag_records == 0")
    scene.receiver.status = 503
    (newest,) = scene.prometheus.now("max(liveness_log_seq)")
    gateway = scene.sidecar.gateway("undelivered")
    # The newest commit stays in memory whole, however large it is: so the last users log
    # in with another commit than those before.
    for begin, end in ((0, 3 * TAIL), (3 * TAIL, 4 * TAIL)):
        for first in range(begin, end, TAIL // 10):
            users = [f"away-{first + number}" for number in range(TAIL // 10)]
            gateway.send("login", users)
        scene.until(f"liveness_outlet_lag_records >= {end}")
    scene.until('liveness_outlet_state{state="retrying"} == 1')
    scene.until("liveness_outlet_retries_total > 0 and liveness_outlet_lag_seconds > 1")
    scene.until("max(liveness_cluster_lag_records) == 0")
    with closing(sqlite3.connect(scene.sidecar.database)) as db, db:
        db.execute(
            "update log set crc = crc + 1 where last = "
            "(select min(last) from log where last > ?)",
            [newest.value + 2 * TAIL],
        )
    scene.receiver.status = 204
    scene.until("liveness_outlet_records_missed_total > 0")
    scene.until("liveness_outlet_lag_records == 0")


Cause = Callable[[Scene], None]

# Every panel, under what it is to show.
CAUSES: Final[dict[Cause, list[str]]] = {
    users_come: [
        *("Users online", "Users by sidecar", "Sessions begun", "Events received"),
        *("Links", "Records written", "Time of a commit", "Descriptors"),
        "Users on all hosts",
    ],
    users_go: [
        *("Offlines a second", "Sessions ended", "Events ignored"),
        *("Decided within (p99)", "Decided after the deadline", "Lateness by stage"),
    ],
    users_speak_seldom: ["How often users speak"],
    somebody_watches: ["Streams"],
    a_gateway_acknowledges_late: ["Unacknowledged", "Records sent and acknowledged"],
    a_gateway_is_mute: ["Held", "Promises to ping"],
    a_gateway_has_another_clock: ["Beginnings not used"],
    answers_are_left_unread: ["Unread and unfinished"],
    a_socket_is_removed: ["Files lost"],
    a_gateway_starts_anew: ["Users by gateway"],
    a_storm: ["Storms"],
    very_many_come: ["Processor", "Memory", "Log size", "Uptime"],
    a_page_of_the_log_is_damaged: ["Damaged records"],
    frames_are_refused: ["Frames refused", "Limits met"],
    requests_are_refused: ["HTTP refused"],
    timers_fire_and_fail: [
        *("Timers by state", "Timers in memory", "Runs of timers", "Timer lateness"),
    ],
    a_sidecar_fires_early: ["Early offlines"],
    users_come_one_by_one: ["Calls to Redis"],
    redis_has_other_sessions: ["Sessions listed anew"],
    somebody_asks_about_all_hosts: ["Questions about all hosts"],
    redis_is_away: [
        *("Age of what Redis lacks", "Records that Redis lacks", "Lease used"),
        *("Redis answers", "Failed calls to Redis"),
    ],
    a_host_is_lost: ["Hosts lost"],
    a_name_is_taken: ["Partitions"],
    users_are_soon_back: ["Damped"],
    a_receiver_refuses_records: ["Dead letters"],
    a_receiver_is_away: [
        *("Outlets by state", "Outlets behind by", "Records not delivered"),
        *("Delivered by outlets", "Delivered within", "Retries of outlets"),
    ],
    a_sidecar_is_stopped: ["Unattended", "Time unattended", "Hand lag"],
    the_disk_is_full: ["Ready", "Records waiting", "Failed writes"],
    no_file_can_be_opened: ["Accepts put off"],
}
CAUSE_OF: Final = {panel: cause for cause, them in CAUSES.items() for panel in them}
# These differ from one scrape to the next, whatever happens. By how much they are to rise
# above all that they were while it was calm.
NEVER_CALM: Final = {
    "Processor": 0.05,
    "Memory": 2e6,  # of the 130 bytes a user, most
    "Uptime": 5,  # timeouts that were waited for meanwhile
    "Hand lag": 3,
    "Time unattended": 0.1,
    "Unattended": 3,
    "Lease used": 0.5,
}
# Brought up to date every ten seconds only.
SELDOM_READ: Final = {"Log size"}
# Expressions beside the one that a panel is about, which stay as they are.
CONSTANT: Final = re.compile(r"process_max_fds")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Plays everything once. The results can be queried from Prometheus afterwards."""
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp("s") for _ in range(4)]
        redis = stack.enter_context(redis_server())
        receiver = stack.enter_context(receiving())
        cluster: dict[str, Any] = {
            "cluster_url": redis.url,
            "cluster_lease_s": LEASE_S,
            "cluster_partitions": PARTITIONS,
        }
        token = token_file(folders[2])
        sidecar, hasty = (
            stack.enter_context(Sidecar(folder)) for folder in folders[:2]
        )
        hasty.under = [sys.executable, "-m", "tests.system.fast_clock"]
        hasty.launch(**cluster, cluster_host="second")
        sidecar.launch(
            **cluster,
            cluster_host="first",
            http_token_file=token,
            flush_s=0.1,
            guard_enabled="true",
            guard_least_users=STORM,
            guard_hold_s=1,
            limits_max_batch=STORM,
            limits_gateway_hold_s=2,
            limits_max_settling=100,
            limits_tail=TAIL,
            webhooks_waits_s=[0.5] * 100,
            webhooks_max_dead=MAX_DEAD,
            config=receiver.settings(folders[2]),
        )
        sidecar.line("ready")
        hasty.line("ready")
        prometheus = stack.enter_context(
            Prometheus(folders[2], [sidecar, hasty], token)
        )
        scene = Scene(
            sidecar, hasty, prometheus, stack, redis, folders[3], cluster, receiver
        )
        prometheus.until("count(up == 1) == 2")
        prometheus.until("sum(liveness_cluster_partitions{mode='following'}) > 7")
        # So that a rate is one over calm scrapes only.
        prometheus.until("min(count_over_time(liveness_users_online[1m])) >= 7")
        scene.calm = (now_s() - SCRAPE_S, now_s())
        for cause in CAUSES:
            began = now_s()
            cause(scene)
            scene.times[cause.__name__] = (began, now_s())
        hasty.kill()
        prometheus.until("count(up == 0) == 1")
        prometheus.until("liveness_log_bytes > 100e3")
        # Whatever was seen is still the newest by then.
        scene.ended = now_s() + SCRAPE_S
        yield scene


def test_every_panel_has_a_cause_and_every_cause_a_panel() -> None:
    told = [panel for them in CAUSES.values() for panel in them]
    assert sorted(told) == sorted(PANELS)


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_shows_its_cause_and_nothing_before(scene: Scene, title: str) -> None:
    began, ended = scene.times[CAUSE_OF[title].__name__]
    if title in SELDOM_READ:
        ended = scene.ended
    for expression in PANELS[title]:
        asked = scene.shown(expression)
        before = scene.at(asked, began)
        during = scene.prometheus.between(asked, began, ended + SCRAPE_S)
        assert has_data(during), expression
        assert is_new(before, during) or CONSTANT.search(expression), expression
        calm = scene.prometheus.between(asked, *scene.calm)
        if title not in NEVER_CALM:
            assert not is_new(scene.at(asked, scene.calm[0]), calm), expression
        else:
            assert rise(calm, during) > NEVER_CALM[title], expression


def rise(before: list[Sample], after: list[Sample]) -> float:
    """By how much the highest value of a series is above all that it had before."""
    most: dict[Labels, float] = {}
    for one in before:
        most[one.labels] = max(one.value, most.get(one.labels, 0))
    return max(one.value - most.get(one.labels, math.inf) for one in after)


# --- the rules ----------------------------------------------------------------------

ALERTS: Final = expressions(monitoring.ALERTS)
# What would take longer than a test may. They are shown to fire in alerts_test.yml; here
# it is looked at whether there is data for what they compare.
TAKES_LONGER: Final = {
    "LivenessRestarts",
    "LivenessHandLag",
    "LivenessLate",
    "LivenessToldLate",
    "LivenessLogStalled",
    "LivenessUnacknowledged",
    "LivenessPingsLate",
    "LivenessClusterLag",
    "LivenessOutletStopped",
    "LivenessOutletLag",
}
# The one rule that is about what is not there.
MISSING: Final = "LivenessMissing"


@pytest.mark.parametrize("name", monitoring.RECORDS)
def test_a_recording_rule_has_data(scene: Scene, name: str) -> None:
    began = scene.prometheus.began_s
    assert has_data(scene.prometheus.between(name, began, scene.ended))


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_true_of_what_has_happened_and_of_nothing_before(
    scene: Scene, name: str
) -> None:
    expression = ALERTS[name]
    if name == MISSING:
        expression = expression.replace("liveness", "nobody")
    elif name in TAKES_LONGER:
        expression = re.sub(r" (?:==|>=?) [\d.]+", "", expression)
    seen = scene.prometheus.between(expression, scene.prometheus.began_s, scene.ended)
    assert has_data(seen), expression
    if name == MISSING:
        known = scene.prometheus.between(ALERTS[name], scene.calm[0], scene.ended)
        assert not known
    if name not in {MISSING, *TAKES_LONGER}:
        assert not scene.prometheus.between(expression, *scene.calm)


def test_the_alerts_that_fire_are_drawn_into_the_dashboard(scene: Scene) -> None:
    (annotation,) = (one for one in DASHBOARD["annotations"]["list"] if "expr" in one)
    fired = scene.prometheus.between(
        scene.shown(annotation["expr"]), scene.prometheus.began_s, scene.ended
    )
    assert "LivenessEarlyOffline" in {dict(one.labels)["alertname"] for one in fired}


def test_promtool_finds_no_fault_in_what_is_scraped(scene: Scene) -> None:
    _, metrics = scene.sidecar.get("/metrics")
    assert promtool("check", "metrics", input=metrics) == ""

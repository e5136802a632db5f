"""The container's files match the product.

The Containerfile is built by its own steps and run as an engine would (`tests/system/image.py`
says how), with all that compose.yml puts beside it but Grafana. Of Grafana, and of what
only an engine reads, it is checked that every file and name that is referred to is there.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
import yaml
from packaging.utils import canonicalize_name

import liveness
from liveness.config.settings import Config
from tests.helpers.command_lines import checked
from tests.helpers.manifests import memory_bytes, quantity
from tests.helpers.needs import require, require_root
from tests.helpers.tree import ROOT
from tests.project.test_packaging import required
from tests.system.image import (
    Container,
    Mount,
    Stage,
    build,
    fetched,
    instructions,
    is_sent,
    network,
    send,
)
from tests.system.sidecar import READY_S, eventually

HERE: Final = ROOT / "deploy" / "container"
CONTAINERFILE: Final = (HERE / "Containerfile").read_text()
IGNORED: Final = (ROOT / ".dockerignore").read_text()
TEXT: Final = (HERE / "compose.yml").read_text()
OURS: Final = f"localhost/liveness:{liveness.__version__}-compose"
TOKEN: Final = "0123456789abcdefghijklmn"

# Building is most of it: packages are fetched, and the wheel is compiled.
pytestmark = pytest.mark.timeout(1_800)

Compose = dict[str, Any]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The image, made by the Containerfile's own steps."""
    require_root()
    require("mount")
    folder = tmp_path_factory.mktemp("image")
    context = folder / "context"
    send(ROOT, IGNORED, context)
    yield build(CONTAINERFILE, context, folder)
    shutil.rmtree(folder)  # 100 MB, which pytest would keep for three more runs


@pytest.fixture(scope="module")
def net() -> Iterator[int]:
    with network() as holder:
        yield holder


def words(containerfile: str) -> dict[str, str]:
    """The last of each instruction."""
    return {one.word: one.text for one in instructions(containerfile)}


# --- the image ----------------------------------------------------------------------


def test_the_image_has_what_the_sidecar_needs_and_no_more(image: Stage) -> None:
    (site,) = image.root.glob("opt/liveness/lib/python3.*/site-packages")
    found = distributions(path=[str(site)])
    there: dict[str, Distribution] = {canonicalize_name(it.name): it for it in found}
    wanted = there["liveness-sidecar"].requires or []
    needed = [
        required(wanted, extra, there.__getitem__)
        for extra in there["liveness-sidecar"].metadata.get_all("Provides-Extra", [])
    ]
    assert there.keys() == {"liveness-sidecar"}.union(*needed)
    assert list(site.glob("liveness/core/*/_*.so"))
    assert not list(image.root.glob("src"))
    left = [*image.folder.glob("local/lib/python3.*/site-packages/*")]
    assert [one for one in left if not one.is_char_device()] == [], "of the base"
    # Each module has its bytecode, which is held against no file's time.
    for path in site.glob("liveness/**/*.py"):
        (compiled,) = (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")
        assert compiled.read_bytes()[4:8] == b"\1\0\0\0", compiled


def test_the_image_says_what_it_is(image: Stage) -> None:
    said = {name.rpartition(".")[2]: value for name, value in image.labels.items()}
    assert said["version"] == liveness.__version__
    assert said["licenses"] == "Apache-2.0"
    assert image.user == "9874:9874"
    assert image.ports == [checked(image.entrypoint + image.command).http.port]
    options = {"interval", "timeout", "start-period", "retries"}
    assert image.health_options.keys() == options


@pytest.mark.parametrize(
    ("name", "pattern", "times"),
    [
        ("deploy/container/Containerfile", r'image\.version="([^"]*)"', 1),
        ("deploy/container/Containerfile", r"localhost/liveness:?(\S*)", 2),
        ("deploy/container/compose.yml", r"localhost/liveness:?(\S*)-compose", 2),
        ("deploy/kubernetes/gateway.yaml", r"localhost/liveness:?(\S*)", 2),
        ("deploy/kubernetes/kustomization.yaml", r"newTag: (\S*)", 1),
        ("docs/deployment.md", r"localhost/liveness:?(\S*)", 2),
        ("docs/backups.md", r"localhost/liveness:([\d.]*)", 3),
        ("docs/command-line.md", r"(?m)^liveness +([\d.]+) \(", 2),
        ("docs/operations.md", r"(?m)^liveness +([\d.]+) \(", 1),
    ],
)
def test_a_file_that_names_the_version_names_this_one(
    name: str, pattern: str, times: int
) -> None:
    found = re.findall(pattern, (ROOT / name).read_text())
    assert found == [liveness.__version__] * times


def test_the_image_keeps_all_that_it_writes_in_its_volumes() -> None:
    last = words(CONTAINERFILE)
    environ = dict(one.split("=", 1) for one in last["ENV"].split())
    uid = int(last["USER"].partition(":")[0])
    settings = checked(
        json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"]), environ, unix_user=uid
    )
    volumes = json.loads(last["VOLUME"])
    assert [str(settings.socket.path.parent), str(settings.state.dir)] == volumes
    checked(
        json.loads(last["HEALTHCHECK"].partition("CMD ")[2]), environ, unix_user=uid
    )


def volumes(image: Stage, folder: Path) -> list[Mount]:
    """A new volume for each one of the image, with its files, as engines do."""
    return [
        volume(image, folder / PurePosixPath(one).name, one) for one in image.volumes
    ]


def wait_until_healthy(container: Container, health: list[str]) -> None:
    eventually(
        lambda: bool(container.pid) and container.exec(*health).returncode == 0,
        lambda: container.said,
        within_s=READY_S,
    )


def volume(image: Stage, source: Path, target: str) -> Mount:
    inside = image.root / target.lstrip("/")
    if not source.exists():
        shutil.copytree(inside, source)
        status = inside.stat()
        os.chown(source, status.st_uid, status.st_gid)
    return Mount(source, target, is_writable=True)


def test_the_image_serves_and_ends(image: Stage, net: int, tmp_path: Path) -> None:
    log, kept = tmp_path / "log", volumes(image, tmp_path)
    with Container(image, log, network=net, mounts=kept) as sidecar:
        wait_until_healthy(sidecar, image.health)
        version = sidecar.exec("liveness", "version")
        assert version.stdout.startswith(f"liveness {liveness.__version__} ")
        assert version.stdout.endswith("wheel: compiled\n")
        assert fetched(net, "http://127.0.0.1:9874/readyz")[0] == 200
        # It is who it is said to be, has no right, and nowhere to write but there.
        status = Path(f"/proc/{sidecar.pid}/status").read_text()
        assert re.search(r"^Uid:\t9874\t9874\t9874\t9874$", status, re.M)
        assert set(re.findall(r"^Cap\w+:\t(\w+)$", status, re.M)) == {"0" * 16}
        assert re.search(r"^NoNewPrivs:\t1$", status, re.M)
        for place in ("/tmp", "/opt/liveness", "/usr/local/lib", "/etc"):
            failed = sidecar.exec("/usr/bin/touch", f"{place}/it")
            assert "Read-only file system" in failed.stderr
        assert sidecar.stop() == 0, sidecar.said
    # The next one goes on with the same volumes; one that does not serve is not healthy.
    with Container(image, log, network=net, mounts=kept) as sidecar:
        wait_until_healthy(sidecar, image.health)
    sleeping = ["/bin/sleep", "60"]
    with Container(image, log, network=net, command=sleeping, mounts=kept) as other:
        eventually(lambda: bool(other.pid), lambda: other.said)
        assert other.exec(*image.health).returncode != 0


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("liveness/cli/main.py", True),
        ("liveness/service/http/page/index.html", True),
        ("requirements/runtime.lock", True),
        ("liveness/core/wheel/_wheel.cpython-311-x86_64-linux-gnu.so", False),
        ("liveness/core/wheel/__pycache__/wheel.cpython-311.pyc", False),
        ("deploy/container/token", False),
        (".git/config", False),
        ("tests/conftest.py", False),
        ("requirements/dev.lock", False),
    ],
)
def test_an_engine_is_sent_sources_and_no_secret(name: str, *, sent: bool) -> None:
    assert is_sent(PurePosixPath(name), IGNORED) is sent


# --- compose.yml: what it says ------------------------------------------------------


def services(compose: Compose) -> dict[str, Compose]:
    found: dict[str, Compose] = compose["services"]
    return found


def command_of(service: Compose) -> list[str]:
    last = words(CONTAINERFILE)
    entry = service.get("entrypoint", json.loads(last["ENTRYPOINT"]))
    return [*entry, *service.get("command", json.loads(last["CMD"]))]


def mounted(service: Compose) -> dict[str, str]:
    """The mounts of a service, by path; see `secret_of` for the long form."""
    short = [one for one in service.get("volumes", []) if isinstance(one, str)]
    parts = [one.split(":") for one in short]
    return {target: source for source, target, *_ in parts}


def secret_of(service: Compose) -> dict[str, str]:
    """The one mount in the long form: a file that has to be there, by where it is seen."""
    (one,) = (it for it in service["volumes"] if not isinstance(it, str))
    assert (one["type"], one["read_only"]) == ("bind", True)
    assert one["bind"] == {"selinux": "z", "create_host_path": False}
    return {one["target"]: one["source"]}


def environ_of(service: Compose) -> dict[str, str]:
    """The environment of a service of ours, including that of the image."""
    image = dict(one.split("=", 1) for one in words(CONTAINERFILE)["ENV"].split())
    return {**image, **service.get("environment", {})}


def user_of(service: Compose) -> str:
    user: str = service.get("user", words(CONTAINERFILE)["USER"])
    return user


def settings_of(compose: Compose) -> Config:
    """The settings of the sidecar."""
    sidecar = services(compose)["sidecar"]
    uid = int(user_of(sidecar).partition(":")[0])
    return checked(command_of(sidecar), environ_of(sidecar), unix_user=uid)


def ports(compose: Compose, name: str) -> set[int]:
    return {int(one.split(":")[-1]) for one in services(compose)[name].get("ports", [])}


def check(compose: Compose) -> None:
    """Fails if compose.yml names missing things, or allows more than necessary."""
    every = services(compose)
    for name, service in every.items():
        check_confined(compose, name)
        long = [one for one in service.get("volumes", []) if not isinstance(one, str)]
        assert len(long) == (name == "sidecar"), "the secret is the sidecar's alone"
        for target, source in mounted(service).items():
            if source.startswith("."):
                assert (HERE / source).is_file(), source
                assert f"{source}:{target}:ro,z" in service["volumes"]
            else:
                assert source in compose["volumes"], source
        for other, wanted in service.get("depends_on", {}).items():
            assert wanted == {"condition": "service_healthy"}
            assert "test" in every[other]["healthcheck"]
        if service["image"] != OURS:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), "of one version"
        elif name != "sidecar":
            assert "build" not in service, "one image would be built twice at a time"
            assert service["pull_policy"] == "never"
    check_sidecar(compose)
    check_gateway(compose)
    check_prometheus(compose)
    check_grafana(compose)


def check_confined(compose: Compose, name: str) -> None:
    service = services(compose)[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.keys() >= {"mem_limit", "pids_limit", "restart"}
    assert service.keys().isdisjoint(
        {"privileged", "cap_add", "network_mode", "pid", "ipc", "userns_mode", "cpus"}
    )
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:"), "only this host's own"
    known = {"test", "interval", "timeout", "start_period", "retries", "disable"}
    assert service["healthcheck"].keys() <= known, "what an older Docker knows, too"
    for one in service.get("tmpfs", []):
        options = one.partition(":")[2].split(",")
        assert {it.partition("=")[0] for it in options} <= {"", "mode", "size"}, (
            "what both engines know"
        )


def check_sidecar(compose: Compose) -> None:
    sidecar, last = services(compose)["sidecar"], words(CONTAINERFILE)
    assert sidecar["image"] == OURS
    assert (HERE / sidecar["build"]["context"]).resolve() == ROOT
    assert (ROOT / sidecar["build"]["dockerfile"]).read_text() == CONTAINERFILE
    uid, _, gid = user_of(sidecar).partition(":")
    settings = settings_of(compose)
    assert settings.http.port in ports(compose, "sidecar")
    assert "sidecar" in settings.http.names
    source = secret_of(sidecar)[str(settings.http.token_file)]
    kept = PurePosixPath("deploy/container", source)
    assert not is_sent(kept, IGNORED)
    assert f"/{kept}" in (ROOT / ".gitignore").read_text().split("\n")
    written = {str(settings.socket.path.parent), str(settings.state.dir)}
    assert mounted(sidecar).keys() == written == set(json.loads(last["VOLUME"]))
    kind, *health = sidecar["healthcheck"]["test"]
    assert [kind, *health] == ["CMD", *json.loads(last["HEALTHCHECK"].split("CMD ")[1])]
    # The gateway: its group gets it to the socket, and its user is allowed in.
    gateway = services(compose)["gateway"]
    its_uid, _, its_gid = gateway["user"].partition(":")
    assert (its_uid != uid, its_gid) == (True, gid)
    assert its_uid in settings.access.gateways.split(",")
    name = option(gateway, "--name")
    assert settings.access.names == f"{name}={its_uid}"
    assert int(sidecar["stop_grace_period"].removesuffix("s")) > 5
    assert quantity(sidecar["mem_limit"].replace("g", "Gi")) >= memory_bytes(settings)


def check_gateway(compose: Compose) -> None:
    sidecar, gateway, users = (
        services(compose)[name] for name in ("sidecar", "gateway", "users")
    )
    settings = settings_of(compose)
    socket = option(gateway, "--sidecar")
    assert Path(socket) == settings.socket.path
    folder = str(Path(socket).parent)
    assert mounted(gateway)[folder] == mounted(sidecar)[folder]
    assert str(settings.state.dir) not in mounted(gateway)
    assert int(option(gateway, "--port")) in ports(compose, "gateway")
    assert option(users, "--host") == "gateway"
    assert option(users, "--port") == option(gateway, "--port")
    assert float(option(users, "--timeout")) == settings.timeout_s


def option(service: Compose, name: str) -> str:
    command: list[str] = service["command"]
    return command[command.index(name) + 1]


def check_prometheus(compose: Compose) -> None:
    prometheus = services(compose)["prometheus"]
    there = mounted(prometheus)
    (config,) = (
        one.partition("=")[2]
        for one in prometheus["command"]
        if one.startswith("--config.file=")
    )
    said = yaml.safe_load((HERE / there[config]).read_text())
    example = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert said["rule_files"] == example["rule_files"]
    for name in said["rule_files"]:
        source = HERE / there[str(PurePosixPath(config).parent / name)]
        assert source.resolve() == ROOT / "deploy/prometheus" / name
    (job,) = said["scrape_configs"]
    assert job["job_name"] == example["scrape_configs"][0]["job_name"]
    target = f"sidecar:{settings_of(compose).http.port}"
    assert job["static_configs"] == [{"targets": [target]}]


def check_grafana(compose: Compose) -> None:
    grafana = services(compose)["grafana"]
    there = mounted(grafana)
    provisioning = "/etc/grafana/provisioning"
    (source,) = yaml.safe_load(
        (HERE / there[f"{provisioning}/datasources/liveness.yml"]).read_text()
    )["datasources"]
    assert source["type"] == "prometheus"
    assert source["isDefault"] is True
    name, _, port = source["url"].removeprefix("http://").partition(":")
    assert int(port) in ports(compose, name)
    (provider,) = yaml.safe_load(
        (HERE / there[f"{provisioning}/dashboards/liveness.yml"]).read_text()
    )["providers"]
    asked = {name: it for name, it in grafana["environment"].items() if "CHECK" in name}
    assert set(asked.values()) == {"false"}
    assert grafana["environment"]["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"
    inside = f"{provider['options']['path']}/liveness.json"
    dashboard = json.loads((HERE / there[inside]).read_text())
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == inside
    # The dashboard asks the source that is chosen; of this type there is one, the default.
    (variable,) = (
        one for one in dashboard["templating"]["list"] if one["type"] == "datasource"
    )
    assert variable["query"] == source["type"]
    job = yaml.safe_load((HERE / "prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == job["scrape_interval"]


def test_all_that_compose_names_is_there_and_it_allows_no_more_than_it_must() -> None:
    check(yaml.safe_load(TEXT))


# A service's key, and what it is changed to: a value, or a function of what it is.
WRONG: Final[list[tuple[str, str, Any]]] = [
    ("sidecar", "command", ["serve", "--tiemout", "10"]),
    ("sidecar", "command", ["serve", "--timeout", "never"]),
    ("sidecar", "command", ["serve", "--timeout", "20"]),
    ("sidecar", "environment", lambda it: it | {"LIVENESS_HTTP_ADRESS": "it"}),
    ("sidecar", "environment", lambda it: it | {"LIVENESS_HTTP_HOSTS": "it"}),
    ("sidecar", "environment", lambda it: it | {"LIVENESS_ACCESS_GATEWAYS": "1"}),
    ("sidecar", "environment", lambda it: it | {"LIVENESS_STATE_DIR": "/it"}),
    ("sidecar", "volumes", lambda it: [it[0], it[2]]),
    ("sidecar", "volumes", lambda it: [*it[:2], it[2] | {"target": "/it"}]),
    ("sidecar", "volumes", lambda it: [*it[:2], it[2] | {"source": "./secret"}]),
    ("sidecar", "volumes", lambda it: [*it[:2], it[2] | {"read_only": False}]),
    ("sidecar", "volumes", lambda it: [*it[:2], it[2] | {"bind": {}}]),
    ("sidecar", "ports", ["9874:9874"]),
    ("sidecar", "stop_grace_period", "5s"),
    ("sidecar", "cpus", 1),
    ("sidecar", "mem_limit", "512m"),
    ("sidecar", "healthcheck", lambda it: it | {"test": ["CMD", "true"]}),
    ("gateway", "healthcheck", lambda it: it | {"start_interval": "2s"}),
    ("gateway", "user", "9875:9875"),
    ("gateway", "user", "9874:9874"),
    ("gateway", "volumes", lambda it: [*it, "state:/var/lib/liveness"]),
    ("gateway", "volumes", lambda it: [*it, {"type": "bind", "source": "/"}]),
    ("gateway", "depends_on", {"users": {"condition": "service_healthy"}}),
    ("sidecar", "build", lambda it: it | {"context": ".."}),
    ("gateway", "build", {"context": "../.."}),
    ("users", "pull_policy", "always"),
    ("prometheus", "volumes", lambda it: it[:2]),
    ("prometheus", "volumes", lambda it: [*it, "./it.yml:/it.yml:ro,z"]),
    ("prometheus", "image", "prom/prometheus:latest"),
    ("grafana", "volumes", lambda it: it[:2]),
    ("grafana", "environment", lambda it: it | {"GF_PLUGINS_PREINSTALL_DISABLED": "0"}),
    ("grafana", "cap_drop", []),
    ("grafana", "tmpfs", ["/var/lib/grafana:uid=472,mode=0700"]),
    ("users", "command", lambda it: [*it[:3], "7001", *it[4:]]),
    ("users", "read_only", False),
]


@pytest.mark.parametrize(("name", "key", "change"), WRONG)
def test_a_mistake_in_compose_is_found(name: str, key: str, change: Any) -> None:
    compose: Compose = yaml.safe_load(TEXT)
    service = services(compose)[name]
    service[key] = change(service[key]) if callable(change) else change
    with pytest.raises(Exception):  # noqa: B017, PT011 - any: the check is what is tested
        check(compose)


# --- compose.yml: what it does ------------------------------------------------------


class Composed:
    """Services of compose.yml in one network, where each has the name that it has there.

    Args:
        image: Ours; also what stands in for Prometheus' own, as this machine has it.
        net: The network.
        folder: For the volumes, the secret and the output.
    """

    def __init__(self, image: Stage, net: int, folder: Path) -> None:
        self._image, self._net, self._folder = image, net, folder
        self._stack = ExitStack()
        compose = yaml.safe_load(TEXT)
        self._services = services(compose)
        # Owned as the head of compose.yml says.
        self._secret = folder / "token"
        self.write_token(TOKEN)
        self._secret.chmod(0o640)
        os.chown(self._secret, 0, 9874)
        names = " ".join(self._services)
        (image.root / "etc/hosts").write_text(f"127.0.0.1 localhost {names}\n")

    def __enter__(self) -> "Composed":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def write_token(self, token: str) -> None:
        """Into the very file that is mounted, as a shell's > does."""
        self._secret.write_text(f"{token}\n")

    def up(self, name: str, *program: str) -> Container:
        """Starts a service, as *program* if it is not of our image."""
        service = self._services[name]
        is_ours = service["image"] == OURS
        command = command_of(service) if is_ours else [*program, *service["command"]]
        mounts = [
            Mount((HERE / source).resolve(), target)
            if source.startswith(".")
            else self._volume(source, target)
            for target, source in mounted(service).items()
        ]
        if name == "sidecar":
            mounts += [Mount(self._secret, one) for one in secret_of(service)]
        return self._stack.enter_context(
            Container(
                self._image,
                self._folder / f"{name}.log",
                network=self._net,
                command=command,
                user=service.get("user", "" if is_ours else "65534:65534"),
                environ=service.get("environment"),
                mounts=mounts,
            )
        )

    def wait_until_healthy(self, name: str, container: Container) -> None:
        _cmd, *test = self._services[name]["healthcheck"]["test"]
        wait_until_healthy(container, test)

    def _volume(self, source: str, target: str) -> Mount:
        if target in self._image.volumes:
            return volume(self._image, self._folder / source, target)
        kept = self._folder / source
        kept.mkdir()
        os.chown(kept, 65534, 65534)
        return Mount(kept, target, is_writable=True)


def test_prometheus_sees_composes_users(image: Stage, net: int, tmp_path: Path) -> None:
    prometheus_here = require("prometheus")
    with Composed(image, net, tmp_path) as composed:
        sidecar = composed.up("sidecar")
        composed.wait_until_healthy("sidecar", sidecar)
        gateway = composed.up("gateway")
        composed.wait_until_healthy("gateway", gateway)
        users = composed.up("users")
        prometheus = composed.up("prometheus", prometheus_here)

        # The gateway is the one that the settings allow, and gets at nothing else.
        refused = gateway.exec("liveness", "status")
        assert refused.returncode != 0
        assert "access.admin" in refused.stderr
        # By the name that Prometheus asks by all but the metrics is closed.
        assert fetched(net, "http://127.0.0.1:9874/v1/users")[0] == 401
        bearer = {"Authorization": f"Bearer {TOKEN}", "Host": "sidecar:9874"}
        assert fetched(net, "http://127.0.0.1:9874/v1/wheel", **bearer)[0] == 200
        # Another token in the same file, as `docs/deployment.md` has it for one in a container.
        composed.write_token(TOKEN[::-1])
        assert fetched(net, "http://127.0.0.1:9874/v1/wheel", **bearer)[0] == 200
        told = sidecar.exec("sh", "-c", "kill -HUP 1")
        assert (told.returncode, told.stderr) == (0, "")
        other = bearer | {"Authorization": f"Bearer {TOKEN[::-1]}"}
        eventually(
            lambda: fetched(net, "http://127.0.0.1:9874/v1/wheel", **other)[0] == 200,
            lambda: sidecar.said,
        )
        assert fetched(net, "http://127.0.0.1:9874/v1/wheel", **bearer)[0] == 401

        def seen() -> list[Any]:
            query = "liveness_users_online%7Bjob%3D%22liveness%22%7D%20%3E%2040"
            url = f"http://127.0.0.1:9090/api/v1/query?query={query}"
            status, body = fetched(net, url)
            return json.loads(body)["data"]["result"] if status == 200 else []

        eventually(
            lambda: bool(seen()),
            lambda: prometheus.said + users.said,
            within_s=READY_S,
        )
        (found,) = seen()
        assert found["metric"]["instance"] == "sidecar:9874"
        _, rules = fetched(net, "http://127.0.0.1:9090/api/v1/rules")
        assert '"LivenessMissing"' in rules
        _, metrics = fetched(net, "http://127.0.0.1:9874/metrics")
        assert "liveness_early_offline_total 0.0" in metrics
        for container, name in ((users, "users"), (gateway, "gateway")):
            service = services(yaml.safe_load(TEXT))[name]
            container.stop(service.get("stop_signal", "SIGTERM"))
        assert sidecar.stop() == 0

"""What `make` runs in its environment: `make tests` is `nox --session tests`.

These sessions use the environment that nox itself is in, which has all that is locked.
Only `python` and `lock` make environments of their own.
"""

import os
import sys
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import nox

nox.options.sessions = ["check", "docs", "test"]
nox.options.reuse_venv = "yes"

here = partial(nox.session, python=False)
ROOT = Path(__file__).parent
QUICK = "not slow and not long and not machine"
# What flake8-async finds and ruff's ASYNC rules do not; 124 (no await) is a matter of style.
ASYNC = (
    "ASYNC101,ASYNC102,ASYNC103,ASYNC104,ASYNC111,ASYNC112,ASYNC113,ASYNC120,ASYNC121,"
    "ASYNC122,ASYNC123,ASYNC125,ASYNC126,ASYNC128,ASYNC211,ASYNC231,ASYNC232,ASYNC400"
)
# For the search for secrets: bytes as hex look random, and examples guard nothing.
RANDOM_HEX = ("proto/vectors/", "tests/upgrades/releases.py")
EXAMPLES = "^whsec_(bGl2ZW5lc3MgZXhhbXBsZSBzZWNyZXQgMDEyMw==|c2hvcnQ=)$"
# What Kubernetes itself knows; the others, of operators, are looked at by the tests.
MANIFESTS = [
    "deploy/kubernetes/gateway.yaml",
    "deploy/kubernetes/service.yaml",
    "deploy/kubernetes/networkpolicy.yaml",
    "deploy/kubernetes/monitoring/networkpolicy.yaml",
]


def pytest_arguments(
    marks: str, arguments: Sequence[str], *, whole: bool, per_processor: int
) -> list[str]:
    """What pytest is given, for tests with these marks.

    Args:
        marks: An expression of pytest's.
        arguments: Those of the caller: tests by name, options, or nothing.
        whole: Whether it means all tests, if none is named, or those that
            pyproject.toml lists.
        per_processor: Run so many processes for each processor, as most tests wait; 0
            for none. One file alone is done sooner than they have started.
    """
    named = [word for word in arguments if word.startswith("tests/")]
    given = ["-m", marks]
    if per_processor and not (len(named) == 1 and ".py" in named[0]):
        jobs = os.environ.get("JOBS") or len(os.sched_getaffinity(0)) * per_processor
        given += [f"--numprocesses={jobs}", "--dist=loadfile"]
        given += ["--no-loadscope-reorder"]
    return [*given, *(["tests"] if whole and not named else []), *arguments]


def run_tests(
    session: nox.Session,
    marks: str,
    *options: str,
    whole: bool = True,
    per_processor: int = 0,
) -> None:
    """Run tests, in UTF-8 whatever the locale is; those of locales set their own."""
    arguments = pytest_arguments(
        marks, session.posargs, whole=whole, per_processor=per_processor
    )
    run_module(session, "pytest", *options, *arguments, PYTHONUTF8="1")


def run_module(
    session: nox.Session, module: str, *arguments: str, **environ: str
) -> None:
    """Run a module in the session's environment; after Ctrl-C it may take its time."""
    session.run(
        *("python" if session.python else sys.executable, "-m", module, *arguments),
        env=environ,
        stderr=None,  # nox would write it to stdout
        interrupt_timeout=60,
        terminate_timeout=60,
    )


# --- tests


@here
def test(session: nox.Session) -> None:
    """The tests of a few minutes (ARGS="tests/core")."""
    run_tests(session, QUICK, whole=False, per_processor=2)


@here
def tests(session: nox.Session) -> None:
    """All tests but the slow ones."""
    run_tests(session, "not slow and not machine", per_processor=3)


@here
def slow(session: nox.Session) -> None:
    """The slow tests."""
    run_tests(session, "slow", "-o", "faulthandler_timeout=5400")


@nox.session(python=["3.11", "3.12", "3.13", "3.14"], venv_backend="venv")
def python(session: nox.Session) -> None:
    """The tests of a few minutes under another Python: nox -s python-3.13."""
    session.install("--no-deps", "--require-hashes", "-r", "requirements/dev.lock")
    session.install("--no-deps", "--no-build-isolation", "-e", ".")
    run_tests(session, QUICK, whole=False, per_processor=2)


@here
def system(session: nox.Session) -> None:
    """The sidecar on whole machines: systemd, containers (root, Debian; twelve minutes)."""
    run_module(session, "tests.machine", *session.posargs)


@here
def simulate(session: nox.Session) -> None:
    """New simulated worlds for a minute (ARGS="--seed 17")."""
    run_module(session, "tests.simulation", *session.posargs)


@here
def mutants(session: nox.Session) -> None:
    """The tests notice it when the code is broken (ARGS="liveness/core/cursors.py")."""
    run_module(session, "tests.mutants", *session.posargs)


@here
def fuzz(session: nox.Session) -> None:
    """Any bytes at the core, some minutes (ARGS="wire --runs 1000000")."""
    run_module(session, "tests.fuzz", *session.posargs)


# --- checks


@here
def check(session: nox.Session) -> None:
    """Lint, format, types, Containerfile, manifests."""
    run_module(session, "ruff", "check")
    encodings = ("--quiet", "--preview", "--select", "PLW1514")
    places = ("liveness", "grafana", "proto", "setup.py", "noxfile.py")
    run_module(session, "ruff", "check", *encodings, *places)
    run_module(session, "ruff", "format", "--check")
    run_module(session, "mypy")
    run_module(session, "flake8", "--select", ASYNC, "liveness", "tests", "grafana")
    programs = Path(sys.executable).parent
    session.run(str(programs / "hadolint"), "deploy/container/Containerfile")
    validate = (str(programs / "kubernetes-validate"), "--strict", "--quiet")
    for version in ("1.29", "1.37"):
        session.run(*validate, "-k", version, *MANIFESTS)


@here
def audit(session: nox.Session) -> None:
    """Vulnerabilities and licences of what is locked, secrets (network)."""
    run_module(session, "piplicenses")
    for lock in sorted(ROOT.glob("requirements/*.lock")):
        options = ("--strict", "--require-hashes", "--disable-pip", "-r", str(lock))
        run_module(session, "pip_audit", *options)
    listed = session.run("git", "ls-files", silent=True, external=True) or ""
    random = {name for name in listed.split() if name.startswith(RANDOM_HEX)}
    hook = (str(Path(sys.executable).parent / "detect-secrets-hook"), "--no-verify")
    session.run(*hook, "--exclude-secrets", EXAMPLES, *({*listed.split()} - random))
    session.run(*hook, "--disable-plugin", "HexHighEntropyString", *random)


# --- what is written


@here
def docs(session: nox.Session) -> None:
    """The manual as a site, in build/docs."""
    options = ("-E", "-W", "--keep-going", "-q", "-c", "docs", "-b", "html")
    run_module(session, "sphinx", *options, ".", "build/docs")


@here
def performance(session: nox.Session) -> None:
    """The tables of docs/performance.md, from the reports committed."""
    session.run(sys.executable, "docs/performance.py")


@here
def screenshots(session: nox.Session) -> None:
    """The documents' pictures of the live page (chromium; five minutes)."""
    run_module(session, "tests.helpers.screenshots", *session.posargs)


@here
def dashboard(session: nox.Session) -> None:
    """Grafana's dashboard, from the code beside it."""
    run_module(session, "grafana.dashboard")


@here
def rules(session: nox.Session) -> None:
    """The rules of deploy/prometheus for a Prometheus operator in Kubernetes."""
    written = "# Written by `make rules`, from deploy/prometheus: change them there.\n"
    for name in ("recording", "alerts"):
        text = (ROOT / f"deploy/prometheus/{name}.yml").read_text(encoding="utf-8")
        groups = text[text.index("\ngroups:") + 1 :].splitlines()
        written += f"""\
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: liveness-{name}
  labels:
    app.kubernetes.io/name: chat
spec:
"""
        written += "".join(f"  {line}\n" if line else "\n" for line in groups)
    file = ROOT / "deploy/kubernetes/monitoring/rules.yaml"
    file.write_text(written, encoding="utf-8")


@nox.session(venv_backend="venv")
def lock(session: nox.Session) -> None:
    """Resolve the locks again (network; ARGS=--upgrade for newer versions)."""
    session.install("uv==0.13.*")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = Path(session.create_tmp(), "build.in")
    build.write_text("\n".join(project["build-system"]["requires"]), encoding="utf-8")
    package = ("--all-extras", "pyproject.toml", str(build))
    runtime = ("-c", "requirements/runtime.lock")
    for name, what in {
        "runtime": package,
        "dev": (*runtime, "--group", "dev", *package),
        "fuzz": ("--group", "fuzz"),
    }.items():
        session.run(
            *("uv", "pip", "compile", "--quiet", "--universal"),
            *("--python-version", "3.11", "--generate-hashes", "--no-header"),
            *("--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
            *("-o", f"requirements/{name}.lock", *session.posargs, *what),
            silent=True,
        )

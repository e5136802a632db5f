# Every target works alone on a fresh clone: it brings the virtual environment to the
# level it needs (runtime, test, dev, docs, fuzz or audit) and no further.
#
# The environment counts as present only by a stamp, which is written last. The stamp's
# name holds a hash of the locks, of the Python and of the place. So after a change of
# any of them, a move of the clone or an interrupted install there is no stamp, and
# the environment is built anew from nothing.
#
# The package itself, compiled in place, has a stamp of its own, named for what it is
# compiled from and whether there is a compiler that finds Python.h and what that needs: a
# change of either compiles it again.

# Tests run in so many processes, more than there are processors, as most of them wait. A
# file alone is done sooner than they have started.
PER_PROCESSOR := 2
JOBS ?= $(shell echo $$(($$(nproc) * $(PER_PROCESSOR))))
NAMED = $(filter tests/%,$(ARGS))
ONE_FILE = $(and $(filter 1,$(words $(NAMED))),$(findstring .py,$(NAMED)))
PARALLEL = $(if $(ONE_FILE),,--numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder)
# Every test, unless some are named.
ALL = $(if $(NAMED),,tests)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# The tests start a thousand processes, and each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV ?= .venv
LEVEL ?= dev
ARGS ?=

LEVELS_runtime := runtime
LEVELS_test := runtime test
LEVELS_dev := runtime test dev
LEVELS_docs := runtime docs
LEVELS_fuzz := runtime test fuzz
LEVELS_audit := runtime test dev docs fuzz audit
LOCK_runtime := requirements/runtime.lock
LOCK_test := requirements/test.lock
LOCK_dev := requirements/dev.lock
LOCK_docs := requirements/docs.lock
LOCK_fuzz := requirements/fuzz.lock
LOCK_audit := requirements/audit.lock

KEY := $(shell { "$(PYTHON)" -c 'import sys; print(sys.version)' || :; echo "$(CURDIR)" "$(VENV)"; \
	cat requirements/*.lock; } 2>/dev/null | sha256sum | cut -c 1-16)
STAMP = $(VENV)/.stamp-$(1)-$(KEY)
SOURCES := setup.py $(wildcard liveness/core/*/_*.pyx liveness/core/*/_*.pxd)
HEADERS := $(shell "$(PYTHON)" -c 'import sysconfig; print(sysconfig.get_config_var("INCLUDEPY"))' 2>/dev/null)
COMPILED := $(VENV)/.compiled-$(KEY)-$(shell { cat $(SOURCES) || :; \
	gcc -E -I "$(HEADERS)" -include Python.h -x c /dev/null >&2 && echo compiles || :; \
	} 2>/dev/null | sha256sum | cut -c 1-16)
READY = $(call STAMP,$(1)) $(COMPILED)
# A sidecar that is tried touches nothing of one that is installed.
OWN := $(CURDIR)/.liveness
APT := apt install git make python3-venv gcc python3-dev

# What flake8-async finds and ruff's ASYNC rules do not; 124 (no await) is a matter of style.
ASYNC := ASYNC101,ASYNC102,ASYNC103,ASYNC104,ASYNC111,ASYNC112,ASYNC113,ASYNC120,ASYNC121
ASYNC := $(ASYNC),ASYNC122,ASYNC123,ASYNC125,ASYNC126,ASYNC128,ASYNC211,ASYNC231,ASYNC232,ASYNC400

# What Kubernetes itself knows; the others, of operators, are looked at by the tests.
MANIFESTS := deploy/kubernetes/gateway.yaml deploy/kubernetes/service.yaml \
	deploy/kubernetes/networkpolicy.yaml deploy/kubernetes/monitoring/networkpolicy.yaml

.PHONY: help setup demo serve test tests slow system simulate mutants fuzz check docs audit bench performance dashboard rules screenshots lock dist wheels release install uninstall clean

help:  ## This list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 13

setup: $(call READY,$(LEVEL))  ## The virtual environment (LEVEL=runtime, test, dev, docs, fuzz, audit)
	@wheel=$$($(VENV)/bin/liveness version | tail -n 1)
	echo "liveness: $(VENV) is ready ($(LEVEL)), $$wheel"

demo: $(call READY,runtime)  ## A chat gateway, simulated users and a sidecar (ARGS="--users 50")
	@exec $(VENV)/bin/liveness demo $(ARGS)

serve: $(call READY,runtime)  ## The sidecar, in .liveness of this folder (ARGS="--timeout 10")
	@mkdir -p .liveness
	printf "socket.path = '%s'\nstate.dir = '%s'\n" "$(OWN)/gateway.sock" "$(OWN)/state" >"$(OWN)/liveness.toml"
	LIVENESS_CONFIG="$${LIVENESS_CONFIG:-$(OWN)/liveness.toml}" exec $(VENV)/bin/liveness serve $(ARGS)

# Tests read and write UTF-8 in any locale. Those of locales set their own.
test tests slow: export PYTHONUTF8 := 1

test: $(call READY,test)  ## The tests of a few minutes (ARGS="tests/core")
	@exec $(VENV)/bin/python -m pytest -m "not slow and not long and not machine" $(PARALLEL) $(ARGS)

tests: PER_PROCESSOR := 3  # those of processes wait the most
tests: $(call READY,test)  ## All tests but the slow ones
	@exec $(VENV)/bin/python -m pytest -m "not slow and not machine" $(PARALLEL) $(ALL) $(ARGS)

slow: $(call READY,test)  ## The slow tests
	@exec $(VENV)/bin/python -m pytest -m slow -o faulthandler_timeout=5400 $(ALL) $(ARGS)

system: $(call READY,test)  ## The sidecar on whole machines: systemd, containers (root, Debian; twelve minutes)
	@exec $(VENV)/bin/python -m tests.machine $(ARGS)

simulate: $(call READY,test)  ## New simulated worlds for a minute (ARGS="--seed 17")
	@exec $(VENV)/bin/python -m tests.simulation $(ARGS)

mutants: $(call READY,test)  ## The tests notice each protection taken out (ARGS="read-before-fire")
	@exec $(VENV)/bin/python -m tests.mutants $(ARGS)

fuzz: $(call READY,fuzz)  ## Any bytes at the core, some minutes (ARGS="wire --runs 1000000")
	@exec $(VENV)/bin/python -m tests.fuzz $(ARGS)

check: $(call READY,dev)  ## Lint, format, types, Containerfile
	@$(VENV)/bin/ruff check
	$(VENV)/bin/ruff check --quiet --preview --select PLW1514 liveness grafana proto setup.py
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/flake8 --select $(ASYNC) liveness tests grafana
	$(VENV)/bin/hadolint deploy/container/Containerfile
	for version in 1.29 1.37; do
		$(VENV)/bin/kubernetes-validate --strict --quiet -k "$$version" $(MANIFESTS)
	done

docs: $(call READY,docs)  ## The manual as a site, in build/docs
	@exec $(VENV)/bin/sphinx-build -E -W --keep-going -q -c docs -b html . build/docs

audit: $(call READY,audit)  ## Vulnerabilities and licences of what is locked, secrets (network)
	@exec $(VENV)/bin/python -m tests.audit

bench: $(call READY,runtime)  ## The numbers, measured on this machine
	@exec $(VENV)/bin/liveness bench $(ARGS)

performance: $(call STAMP,runtime)  ## The tables of docs/performance.md, from the reports committed
	@exec $(VENV)/bin/python docs/performance.py

screenshots: $(call READY,test)  ## The documents' pictures of the live page (chromium; five minutes)
	@exec $(VENV)/bin/python -m tests.helpers.screenshots $(ARGS)

dashboard: $(call STAMP,test)  ## Grafana's dashboard, from the code beside it
	@exec $(VENV)/bin/python -m grafana.dashboard

rules:  ## The rules of deploy/prometheus for a Prometheus operator in Kubernetes
	@rules() {
		printf -- '---\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n'
		printf 'metadata:\n  name: liveness-%s\n  labels:\n    app.kubernetes.io/name: chat\nspec:\n' "$$1"
		sed -n '/^groups:/,$$p' "deploy/prometheus/$$1.yml" | sed 's/^./  &/'
	}
	{
		echo '# Written by `make rules`, from deploy/prometheus: change them there.'
		rules recording
		rules alerts
	} >deploy/kubernetes/monitoring/rules.yaml

lock:  ## Resolve the locks (network; ARGS=--upgrade for newer versions)
	@scratch=$$(mktemp -d)
	trap 'rm -rf "$$scratch"' EXIT
	"$(PYTHON)" -m venv "$$scratch"
	"$$scratch/bin/pip" install --quiet 'uv==0.13.*'
	"$(PYTHON)" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' >"$$scratch/build.in"
	compile() {
		"$$scratch/bin/uv" pip compile --quiet --universal --python-version 3.11 \
			--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
			--extra sidecar --extra cluster --extra kafka $(ARGS) "$$@" pyproject.toml "$$scratch/build.in" >/dev/null
	}
	compile -o $(LOCK_runtime)
	compile -o $(LOCK_test) -c $(LOCK_runtime) --group test
	compile -o $(LOCK_dev) -c $(LOCK_test) --group test --group dev
	compile -o $(LOCK_docs) -c $(LOCK_dev) --group docs
	compile -o $(LOCK_fuzz) -c $(LOCK_dev) --group test --group fuzz
	compile -o $(LOCK_audit) -c $(LOCK_dev) -c $(LOCK_docs) -c $(LOCK_fuzz) --group test --group dev --group docs --group fuzz --group audit

dist: $(call STAMP,runtime)  ## An sdist, and the wheel that this machine makes of it
	@VENV="$(VENV)" exec deploy/release dist

wheels: $(call STAMP,dev)  ## An sdist and wheels for any Linux (PYTHONS="python3.11 debian:trixie"; network)
	@VENV="$(VENV)" exec deploy/release wheels

release: $(call STAMP,audit)  ## All that a release hands on (TRIAL=1: of any commit; network)
	@VENV="$(VENV)" exec deploy/release release

install:  ## For this host, as root (PREFIX=/opt/liveness; DESTDIR for packages; network)
	@$(TELL)
	$(CHECK_PYTHON)
	PYTHON="$(PYTHON)" exec deploy/install install

uninstall:  ## What install made (PURGE=1: settings, state and user too)
	@exec deploy/install uninstall

clean:  ## Remove the virtual environment, .liveness, and what tools left behind
	@if [ -e $(VENV)/install.log ]; then rm -rf $(VENV); fi
	rm -rf .liveness build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage liveness/core/*/_*.so
	find liveness tests grafana -name __pycache__ -prune -exec rm -rf {} +

# The install log doubles as the mark of a folder that is ours to empty.
define TELL
say() { printf 'liveness: %s\n' "$$*" >&2; }
fail() { say "$$@"; exit 1; }
log() { "$$@" >>$(VENV)/install.log 2>&1 || { tail -n 20 $(VENV)/install.log >&2; fail "set-up failed, see $(VENV)/install.log"; }; }
endef

define CHECK_PYTHON
version=$$("$(PYTHON)" -c 'import platform; print(platform.python_version())' 2>/dev/null) ||
	fail "$(PYTHON) does not run here. Debian: $(APT). Or name another: PYTHON=python3.13"
"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
	fail "Python 3.11 or newer is needed, $(PYTHON) is $$version. Name a newer one: PYTHON=python3.13"
"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null ||
	fail "$(PYTHON) lacks the venv module. Debian: $(APT)"
endef

# Two makes at once take turns: the lock is on this Makefile, as the folder itself may
# not be there yet.
define TAKE_TURNS
exec 9<Makefile
if command -v flock >/dev/null && ! flock --nonblock 9; then
	say "waiting for another set-up"
	flock 9
fi
if [ -e $@ ]; then exit 0; fi
endef

$(call STAMP,%):
	@$(TELL)
	levels="$(or $(LEVELS_$*),$(error LEVEL is runtime, test, dev, docs, fuzz or audit, not "$*"))"
	$(CHECK_PYTHON)
	command -v git >/dev/null ||
		say "git is missing; it is not needed to run, but to follow and change the project. Debian: $(APT)"

	$(TAKE_TURNS)
	if compgen -G "$(call STAMP,*)" >/dev/null; then
		rm -f $(VENV)/.stamp-*
	else
		if [ -n "$$(ls -A $(VENV) 2>/dev/null)" ] && [ ! -e $(VENV)/install.log ]; then
			fail "$(VENV) was not made by this Makefile. Remove it, or name another: VENV=.venv-liveness"
		fi
		say "making $(VENV) with Python $$version"
		mkdir -p $(VENV)
		: >$(VENV)/install.log
		find $(VENV) -mindepth 1 -maxdepth 1 ! -name install.log -exec rm -rf {} +
		log "$(PYTHON)" -m venv $(VENV)
	fi
	say "installing $(LOCK_$*)"
	log $(VENV)/bin/python -m pip install --no-deps --require-hashes -r $(LOCK_$*)
	touch $(foreach level,$(LEVELS_$*),$(call STAMP,$(level)))

# What does not compile any more must not leave what once did. Only this Python's: another
# environment may have been made with another.
$(COMPILED): | $(call STAMP,runtime)
	@$(TELL)
	$(TAKE_TURNS)
	say "installing liveness"
	# First, and alone: were it empty as Python fails, the sources would be removed.
	suffix=$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
	rm -f $(VENV)/.compiled-* liveness/core/*/_*"$$suffix"
	log $(VENV)/bin/python -m pip install --no-deps --no-build-isolation --editable .
	touch $@

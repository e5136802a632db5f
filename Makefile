# Every target works alone on a fresh clone: requirements/setup first brings .venv to the
# level that it needs, runtime or dev. What the targets at the end run is in noxfile.py.
PYTHON ?= python3
VENV ?= .venv
LEVEL ?= dev
ARGS ?=
SETUP := PYTHON="$(PYTHON)" VENV="$(VENV)" requirements/setup
# A sidecar that is tried touches nothing of one that is installed.
OWN := $(CURDIR)/.liveness
# The tests start a thousand processes, and each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo serve bench dist wheels release install uninstall clean test tests \
	slow system simulate mutants fuzz check audit docs performance screenshots dashboard \
	rules lock pythons

help:  ## This list
	@{ sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile; \
	sed -n '/^def [a-z]*(session/{s/def \([a-z]*\).*/\1/;N;s/\n *"""/\t/;s/\."""//;/^python/!p}' noxfile.py; \
	} | expand -t 13

setup:  ## The virtual environment (LEVEL=runtime: only what runs)
	@$(SETUP) $(LEVEL)
	@echo "liveness: $(VENV) is ready ($(LEVEL)), $$($(VENV)/bin/liveness version | tail -n 1)"

demo:  ## A chat gateway, simulated users and a sidecar (ARGS="--users 50")
	@$(SETUP) runtime && exec $(VENV)/bin/liveness demo $(ARGS)

serve:  ## The sidecar, in .liveness of this folder (ARGS="--timeout 10")
	@mkdir -p $(OWN)
	@printf "socket.path = '%s'\nstate.dir = '%s'\n" "$(OWN)/gateway.sock" "$(OWN)/state" >"$(OWN)/liveness.toml"
	@$(SETUP) runtime && LIVENESS_CONFIG="$${LIVENESS_CONFIG:-$(OWN)/liveness.toml}" exec $(VENV)/bin/liveness serve $(ARGS)

bench:  ## The numbers, measured on this machine
	@$(SETUP) runtime && exec $(VENV)/bin/liveness bench $(ARGS)

dist:  ## An sdist, and the wheel that this machine makes of it
	@$(SETUP) runtime && VENV="$(VENV)" exec deploy/release dist

wheels:  ## An sdist and wheels for any Linux (PYTHONS="python3.11 debian:trixie"; network)
	@$(SETUP) dev && VENV="$(VENV)" exec deploy/release wheels

release:  ## All that a release hands on (TRIAL=1: of any commit; network)
	@$(SETUP) dev && VENV="$(VENV)" exec deploy/release release

install:  ## For this host, as root (PREFIX=/opt/liveness; DESTDIR for packages; network)
	@$(SETUP) --check && PYTHON="$(PYTHON)" exec deploy/install install

uninstall:  ## What install made (PURGE=1: settings, state and user too)
	@exec deploy/install uninstall

clean:  ## Remove the virtual environment, .liveness, and what tools left behind
	@if [ -e $(VENV)/install.log ]; then rm -rf $(VENV); fi
	@rm -rf .liveness .nox __pycache__ build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage liveness/core/*/_*.so .venv*/.compiled-*
	@find liveness tests grafana -name __pycache__ -prune -exec rm -rf {} +

pythons:  ## Some tests under the newest other Python that is here
	@.ci/pythons

# What is in noxfile.py.
NOX = exec $(VENV)/bin/nox --session $@ -- $(ARGS)
test: ; @$(SETUP) dev && $(NOX)
tests: ; @$(SETUP) dev && $(NOX)
slow: ; @$(SETUP) dev && $(NOX)
system: ; @$(SETUP) dev && $(NOX)
simulate: ; @$(SETUP) dev && $(NOX)
mutants: ; @$(SETUP) dev && $(NOX)
check: ; @$(SETUP) dev && $(NOX)
docs: ; @$(SETUP) dev && $(NOX)
performance: ; @$(SETUP) dev && $(NOX)
screenshots: ; @$(SETUP) dev && $(NOX)
dashboard: ; @$(SETUP) dev && $(NOX)
rules: ; @$(SETUP) dev && $(NOX)
fuzz: ; @$(SETUP) dev fuzz && $(NOX)
audit: ; @$(SETUP) dev fuzz && $(NOX)
# Not by what a broken lock would make.
lock: ; @[ -x $(VENV)/bin/nox ] || $(SETUP) dev && $(NOX)

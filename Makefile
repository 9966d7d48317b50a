# From a bare Debian or Ubuntu machine (root, git, make, python3) to everything that this project does.
#   make demo     two network namespaces that ping each other through the executable, the agent and our own IPAM
#   make test     lint, types and every test that this machine can run
#   make simulate 1,000,000 simulated schedules of calls, kills and faults (SCHEDULES=, SEED=): see tests/simulation
#   make bench    our figures beside the peers', in one run
# LOCKED=1 installs the exact distributions of requirements/ci.txt, checked by their hashes.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
WORKERS ?= 2
SCHEDULES ?= 1000000
SEED ?= 0
SYSTEM_PACKAGES := gcc libc6-dev musl-tools python3-dev python3-venv iproute2 iputils-ping iptables \
                   containernetworking-plugins strace etcd-server etcd-client dnsmasq-base openssl util-linux \
                   containerd runc busybox-static podman
SOURCES := $(wildcard _core/*) $(shell find svc -name '*.py*' -not -name '*.pyc') CMakeLists.txt pyproject.toml Makefile

.PHONY: demo test simulate bench lint clean
demo: $(VENV)/.installed
	$(BIN)/python tests/demo.py

test: lint
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup

simulate: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m simulation --schedules $(SCHEDULES) --seed $(SEED)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/cython-lint _core

bench: $(VENV)/.installed
	$(BIN)/python -m bench

$(VENV)/.system:
	@sh tests/harness/system-packages.sh $(SYSTEM_PACKAGES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@touch $@

$(VENV)/.installed: $(VENV)/.system $(SOURCES)
ifdef LOCKED
	$(BIN)/pip install --quiet --require-hashes -r requirements/ci.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
else
	$(BIN)/pip install --quiet -e . --group test --group lint --group bench
endif
	@touch $@

clean:
	rm -rf $(VENV) build dist

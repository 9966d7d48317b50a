# From a bare Debian or Ubuntu machine (root, git, make, python3) to everything that this project does: see `make help`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
WHEELS_VENV := build/wheels-venv
export PATH := $(abspath $(BIN)):$(PATH)
unexport PYTHONDONTWRITEBYTECODE  # tests start Python hundreds of times
WORKERS ?= $(shell expr $$(nproc) + 3)
SCHEDULES ?= 1000000
SEED ?= 0
INPUTS ?= 1000000
NODES ?= 1000
PODS ?= 30000
KILLS ?= 10000
SYSTEM_PACKAGES := gcc libc6-dev musl-tools python3-dev python3-venv iproute2 iputils-ping iptables \
                   containernetworking-plugins strace etcd-server etcd-client dnsmasq-base openssl util-linux \
                   containerd runc busybox-static nftables podman prometheus buildah mmdebstrap
DEB_PACKAGES := debhelper dh-python lintian help2man python3-installer cmake ninja-build musl-tools python3-dev python3-venv man-db
BUILT_FROM := $(wildcard _core/* svc/_core/*.pxd) CMakeLists.txt pyproject.toml Makefile  # Python modules run from the checkout

TEST_CACHE := $(or $(SVC_TESTCACHE),/var/cache/svc-tests)
KUBE_PROGRAMS := $(TEST_CACHE)/kube
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --durations=20 --durations-min=0.5 $(ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo lint style types quick unit e2e test suite cover sanitize simulate fuzz faults bench plots scale kube-programs otlp-receiver helm kustomize image wheels wheels-test wheels-twice deb lock deploy-folders clean FORCE

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
	@echo
	@echo "WORKERS=$(WORKERS)               processes that run tests in parallel: more than processors, because tests wait for servers"
	@echo "ARGS='-k text -x'       options for pytest"
	@echo "SCHEDULES=N SEED=N      which schedules are simulated, see tests/simulation"
	@echo "INPUTS=N SEED=N         how many inputs the fuzzers make, and which"
	@echo "KILLS=N SEED=N          how often the fault bench kills a node, and when"
	@echo "NODES=N PODS=N          size of the cluster in which the controllers are measured"
	@echo "LOCKED=1                install the exact distributions of requirements/ci.txt, checked by their hashes"

demo: $(VENV)/.installed ## connect two network namespaces with the executable and the agent, and ping between them
	$(BIN)/python tests/demo.py

lint: style types ## check style and types

style: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/cython-lint _core svc/_core

types: $(VENV)/.installed
	$(BIN)/mypy
	$(BIN)/stubtest --allowlist tests/harness/stubtest.allow $(addprefix svc._core.,bitmap cidr netns rtnl)

quick: lint ## lint, unit tests, and the contract tests that need no server: for every change
	$(PYTEST) -m "not server and not slow and not long" tests/unit tests/contract tests/measurements

unit: $(VENV)/.installed ## run the unit tests
	$(PYTEST) tests/unit

e2e: $(VENV)/.installed kube-programs otlp-receiver ## run the tests that execute the installed plugin
	$(PYTEST) tests/e2e

test: style kube-programs otlp-receiver helm kustomize ## lint and every test that this machine can run
	@$(MAKE) --no-print-directory --jobs=2 types suite  # mypy needs one processor for half a minute

suite:
	$(PYTEST) --second-run

cover: $(VENV)/.installed kube-programs ## measure the branch coverage of unit, netns and contract tests and simulated regressions
	rm -rf build/coverage
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist loadgroup $(ARGS) tests/unit tests/netns tests/contract tests/simulation/test_simulation.py::test_regression
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report

sanitize: $(VENV)/.installed ## test the compiled core and the executable with the address and undefined behaviour sanitizers
	sh tests/harness/sanitize.sh $(VENV) build/sanitize $(ARGS)

simulate: $(VENV)/.installed ## run simulated schedules of calls, kills and faults
	PYTHONPATH=tests $(BIN)/python -m simulation --schedules $(SCHEDULES) --seed $(SEED)

faults: $(VENV)/.installed kube-programs ## kill nodes at random and controllers at each write, take servers away and restore them
	for store in embedded etcdv3 etcdv3-leaders orch; do for troubles in "" --troubles; do \
	    PYTHONPATH=tests $(BIN)/python -m faults --store $$store --kills $$(($(KILLS) / 8)) --seed $(SEED) $$troubles \
	        || [ $$? -eq 77 ] || exit 1; \
	done; done
	$(BIN)/pytest -o faulthandler_timeout=1800 -m long tests/e2e tests/contract tests/measurements

fuzz: $(VENV)/.installed ## read mutated inputs with every parser; the compiled core and the executable with the address sanitizer
	PYTHONPATH=tests $(BIN)/python -m fuzz --inputs $(INPUTS) --seed $(SEED)
	FUZZ=$(INPUTS) SEED=$(SEED) sh tests/harness/sanitize.sh $(VENV) build/sanitize

bench: $(VENV)/.installed kube-programs ## measure svc and other plugins in one interleaved run
	$(BIN)/python -m bench

plots: $(VENV)/.installed kube-programs ## measure the curves of docs/benchmarks.md, draw them and write its tables: 40 minutes of a quiet machine
	$(BIN)/python -m bench plots

scale: $(VENV)/.installed kube-programs ## measure the controllers with 1,000 nodes and 30,000 pods
	$(BIN)/python -m bench --only scale --nodes $(NODES) --pods $(PODS)

kube-programs: ## build the API server and kubelet for tests, once: 6 minutes and 5 GB, needs Debian 12
	@sh tests/harness/kube-build.sh "$(KUBE_PROGRAMS)" || { [ $$? -eq 2 ] && echo "tests on an API server will be skipped"; }

otlp-receiver: ## build the receiver of traces for tests, once: some minutes and 2 GB, needs Go
	@sh tests/harness/otlp-build.sh "$(TEST_CACHE)/otlp" || { [ $$? -eq 2 ] && echo "tests with a receiver of traces will be skipped"; }

image: $(VENV)/.installed ## build the image of svc, without a container engine and without a registry, in build/image
	@IMAGE_CACHE="$(TEST_CACHE)" sh tools/image.sh build/image

helm: ## build helm for tests, once: some minutes, needs Go
	@sh tests/harness/helm-build.sh "$(TEST_CACHE)/helm" || { [ $$? -eq 2 ] && echo "tests with helm will be skipped"; }

kustomize: ## build the oldest kustomize that the folders are for, for tests, once: needs Go
	@sh tests/harness/kustomize-build.sh "$(TEST_CACHE)/kustomize" || { [ $$? -eq 2 ] && echo "tests with it will be skipped"; }

wheels: $(WHEELS_VENV)/.installed ## build the wheels of all Pythons, C libraries and machines in wheelhouse/; TARGETS="cp312 musllinux": those alone
	$(WHEELS_VENV)/bin/python -m wheels.build $(TARGETS)

wheels-test: $(WHEELS_VENV)/.installed ## run unit and netns tests from the wheels in wheelhouse/, and what is for other machines by qemu; TARGETS as above
	$(WHEELS_VENV)/bin/python -m wheels.trial $(TARGETS)
	$(WHEELS_VENV)/bin/python -m wheels.emulation $(TARGETS)

wheels-twice: $(WHEELS_VENV)/.installed ## build the wheels of the last commit twice, in different folders, and compare their bytes; TARGETS as above
	$(WHEELS_VENV)/bin/python -m wheels.twice $(TARGETS)

deb: $(VENV)/.installed ## build the Debian packages in build/deb with dpkg-buildpackage, and check them with lintian
	@sh tests/harness/system-packages.sh $(DEB_PACKAGES)
	$(BIN)/python -m wheels.deb

lock: ## write the lock files in requirements/ from pyproject.toml; KEEP=1: change only what no longer fits
	$(PYTHON) -m venv build/lock-venv
	build/lock-venv/bin/pip install --quiet 'uv>=0.9'
	PATH="$(abspath build/lock-venv/bin):$$PATH" KEEP="$(KEEP)" sh requirements/renew.sh

deploy-folders: $(VENV)/.installed ## write the generated folders in deploy/ from the model
	$(BIN)/python tools/deploy_folders.py

clean: ## remove the virtual environment and everything that was built
	rm -rf $(VENV) build dist wheelhouse

# The file has the list that was installed: a checkout gets packages that the list has gained since.
ifneq ($(strip $(file <$(VENV)/.system)),$(strip $(SYSTEM_PACKAGES)))
$(VENV)/.system: FORCE
endif
$(VENV)/.system:
	@sh tests/harness/system-packages.sh $(SYSTEM_PACKAGES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@echo $(SYSTEM_PACKAGES) >$@
FORCE:

$(VENV)/.installed: $(VENV)/.system $(BUILT_FROM)
ifdef LOCKED
	$(BIN)/pip install --quiet --require-hashes -r requirements/ci.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
else
	$(BIN)/pip install --quiet --group test --group lint --group bench
	$(BIN)/pip install --quiet --no-build-isolation -e .
endif
	@touch $@

$(WHEELS_VENV)/.installed: requirements/wheels.txt | $(VENV)/.system
	$(PYTHON) -m venv $(WHEELS_VENV)
	$(WHEELS_VENV)/bin/pip install --quiet --require-hashes -r requirements/wheels.txt
	@touch $@

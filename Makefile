# Every target makes what it needs: the virtual environment, the pinned packages, nats-server.
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
SEEDS ?= 300
FROM ?= 0
JOBS ?= 2
# Some four minutes; none when a single seed is played, to reproduce its failure at once.
STEPS ?= $(if $(filter 1,$(SEEDS)),0,100000)
CYCLES ?= 10000
PODS ?= 500
KILLS ?= 10
SERVERS ?= 1
KUBERNETES ?= 1.37
WORKERS ?= 2
SECONDS ?= 60
SEED ?= 1
INPUTS ?= 20000
AUDIT ?=
TRACE_DIR ?= ../shared/traces

# Some images set it. Then every process that a test starts would compile all of Sluice again, which doubles its start-up.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo quota quota-sanitized quota-proof test doses test-k8s cluster cluster-down test-cluster kube-kills check sim schedules soak chaos failover rolling overload perf packing trace decisions fleet burst screenshots helm manifests release images generate proto golden fuzz sbom audit fmt docs lock clean

help: ## Print the targets that most people need; the Makefile has some more, each with a comment
	@for group in use test measure maintain; do echo "$$group:"; \
	    awk -F ":.*##$$group: " 'NF == 2 { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST); done

setup: .venv/ready quota-if-possible ##use: Make .venv with everything pinned, and the quota's library where there is a C compiler

.venv/ready: requirements/dev.txt pyproject.toml tools/make_venv.sh
	sh tools/make_venv.sh $(PYTHON)

include native/quota/build.mk

.PHONY: quota-if-possible
quota-if-possible:
	@if command -v $(CC) >/dev/null; then $(MAKE) -s quota; else echo "no C compiler ($(CC)): no time quota's library" >&2; fi

quota: $(QUOTA_OUT)/libsluice-quota.so # Build the time quota's client library, out/quota/libsluice-quota.so

quota-sanitized: setup # Test the quota's library with the compiler's sanitizers (a minute)
	$(BIN)/pytest -m exhaustive tests/quota

quota-proof: setup # Measure whether tenants of a simulated GPU get the time that they were promised (some four minutes)
	$(BIN)/python tests/quota

demo: setup ##use: Watch pods get MIG slices and give them back, on simulated GPUs
	$(BIN)/sluice demo

# In a new checkout each of the workers would compile every module and rewrite every test: they are compiled once, before.
test: setup ##test: Run the tests
	@ls tests/__pycache__/conftest.*-pytest-*.pyc >/dev/null 2>&1 || $(BIN)/pytest --collect-only -q >/dev/null || true
	$(BIN)/pytest -n 6 --dist worksteal -m "not perf and not exhaustive and not cluster"

doses: setup # Take large doses of what `make test` takes small ones of: seeds, kills, requests and cycles (some 15 minutes)
	SEEDS_IN_TESTS=2000 KILLS_IN_TESTS=50 REQUESTS_IN_TESTS=500 SOAK_IN_TESTS=1 \
	$(BIN)/pytest -n 6 --dist worksteal -m "not perf and not cluster" tests/chaos tests/soak \
	    tests/e2e/failures/test_two_allocators.py tests/simulation/selftests/test_seeds.py

test-k8s: setup ##test: Run the Kubernetes tests on a real cluster, KUBECONFIG=file, in namespaces of their own
ifneq ($(origin KUBECONFIG),command line)
	@echo "say which cluster: make test-k8s KUBECONFIG=file (the environment's is not taken: it may be production)" >&2
	@exit 2
else
	SLUICE_TEST_KUBECONFIG="$(abspath $(KUBECONFIG))" $(BIN)/pytest tests/kubernetes
endif

cluster: setup ##test: Start a real Kubernetes on this machine (Linux, root, Go, buildah or Docker), and say where its kubeconfig is
	@$(BIN)/python tests/cluster up --images --kubernetes $(KUBERNETES) --workers $(WORKERS)

cluster-down: setup # Remove the cluster of `make cluster`
	@$(BIN)/python tests/cluster down

test-cluster: setup ##test: Run the suites that need a real Kubernetes, of KUBERNETES=1.37 or 1.34
	$(BIN)/python tests/cluster test --kubernetes $(KUBERNETES) $(OPTIONS)

kube-kills: setup # Bring PODS=N pods to a fake cluster while the pod-watcher is killed KILLS=n times
	report=$$(mktemp); code=0; \
	KUBE_KILLS_PODS=$(PODS) KUBE_KILLS_KILLS=$(KILLS) KUBE_KILLS_REPORT=$$report \
	$(BIN)/pytest -q tests/e2e/failures/test_kubernetes_kills.py || code=$$?; \
	cat $$report; rm -f $$report; exit $$code

check: setup ##test: Lint, types, import contracts, generated files, manifests; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/proto.py --check
	$(BIN)/python tools/docs.py --check
	$(BIN)/python tools/golden.py --check
	$(BIN)/python tools/manifests.py --check
	$(BIN)/python tools/deploy_check.py
	$(BIN)/python tools/version.py --check
	$(BIN)/python tools/readability.py
	$(BIN)/codespell
	sh tools/check_pins.sh

sim: setup ##test: Simulate SEEDS=n seeds from FROM=n on JOBS=n processes (more options: OPTIONS=--help)
	$(if $(OPTIONS),,$(BIN)/python tests/properties --steps $(STEPS))
	$(BIN)/python tests/simulation --seeds $(SEEDS) --from $(FROM) --jobs $(JOBS) $(OPTIONS)

schedules: setup # Play the simulator's schedules with a crash at every step; `make test` plays some of them
	$(BIN)/pytest -n $(JOBS) -m exhaustive tests/simulation

soak: setup ##test: Make and unmake CYCLES=N slices with the agent killed at every step of its journal (some 15 minutes)
	$(BIN)/python tests/soak --cycles $(CYCLES)

chaos: setup ##test: Break a running system KILLS=N times on SERVERS=1|3 brokers (SEED=n), and judge what it did
	$(BIN)/python tests/chaos --kills $(KILLS) --servers $(SERVERS) --seed $(SEED)

failover: setup ##test: Kill or freeze the working service KILLS=N times on SERVERS=1|3 brokers: how long until the next request is granted
	$(BIN)/python tests/ha failover --kills $(KILLS) --servers $(SERVERS)

rolling: setup ##test: Replace every service by its next version (or that of the checkout OTHER=path) and back, while pods come and go
	$(BIN)/python tests/ha rolling --servers $(SERVERS) $(if $(OTHER),--other $(OTHER))

overload: setup # Ask for ten times as much as can be served for SECONDS=60: memory, what is said, and when it is over
	$(BIN)/python tests/ha overload --seconds $(SECONDS) --servers $(SERVERS)

perf: setup packing trace decisions ##measure: Measure everything: packing, decisions, a running system, start-up after much history
	$(BIN)/python tests/perf
	$(BIN)/python tests/perf closing
	$(BIN)/python tests/perf idle
	$(BIN)/python tests/perf slowed
	$(BIN)/python tests/perf start
	$(BIN)/python tests/perf node_agent
	$(BIN)/python tests/perf admission
	$(BIN)/python tests/perf enrolment
	$(BIN)/python tests/perf kubernetes
	$(BIN)/python tests/perf web

packing: setup ##measure: Measure how well MIG instances are packed, against others and the ideal
	$(BIN)/python tests/perf packing --jobs $(JOBS)
	$(BIN)/python tests/perf moves --jobs $(JOBS)

trace: setup # Measure allocation on the openb trace in TRACE_DIR (skipped where there is none)
	TRACE_DIR=$(TRACE_DIR) $(BIN)/python tests/perf trace --jobs $(JOBS)

decisions: setup ##measure: Measure what a decision costs by size of the fleet (some minutes)
	$(BIN)/python tests/perf decisions

fleet: setup ##measure: Run a whole system with NODES=12500 nodes on this machine, whose agents are simulated on the wire
	$(BIN)/python tests/perf fleet $(if $(NODES),--nodes $(NODES)) $(OPTIONS)

burst: setup ##measure: Measure 300 pods at once on a real API server, beside kube-scheduler with DRA (Linux, root, Go)
	$(BIN)/python tests/perf burst $(OPTIONS)

screenshots: setup ##maintain: Take docs/images/map-light.png and map-dark.png again (needs Debian's chromium)
	$(BIN)/python tools/screenshots.py

helm: setup # Say where a Helm is; without HELM= or one on PATH, build the pinned one (Go)
	@$(BIN)/python -c 'import sys; sys.path.insert(0, "tools"); import chart; print(chart.helm(build=True))'

manifests: setup ##maintain: Write deploy/kubernetes from the Helm chart
	$(BIN)/python tools/manifests.py

release: setup ##maintain: Make out/release/VERSION: images of REGISTRY, chart, notes, checksums (docs/install.md)
	$(BIN)/python tools/release.py "$(VERSION)" "$(REGISTRY)"

images: setup ##use: Build the images of all services and of the broker (BASE_IMAGE=, TAG=, ENGINE=; docs/install.md)
	sh deploy/docker/build.sh

generate: proto docs golden ##maintain: Generate what is made from the code: gRPC code, pages, the dashboard, golden messages

proto: setup # Generate the gRPC code from proto/
	$(BIN)/python tools/proto.py

docs: setup # Generate docs/events.md, docs/json.md and the drawings of docs/images from the code
	$(BIN)/python tools/docs.py
	$(BIN)/python tools/drawings.py

golden: setup # Record what this version writes on the bus (docs/evolution.md)
	$(BIN)/python tools/golden.py

fuzz: setup # Give every reader of outside bytes INPUTS=N inputs (SEED=n)
	$(BIN)/python tests/fuzz --inputs $(INPUTS) --seed $(SEED)

out/audit/ready: requirements/audit.txt
	$(PYTHON) -m venv out/audit
	out/audit/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/audit.txt
	touch $@

sbom: setup out/audit/ready # Write out/sbom.cdx.json: what is installed, as CycloneDX
	out/audit/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o out/sbom.cdx.json .venv/bin/python
	$(BIN)/python tools/sbom_check.py out/sbom.cdx.json

audit: setup out/audit/ready # Ask for known faults of what is pinned (needs a network; AUDIT="--vulnerability-service osv")
	out/audit/bin/pip-audit --strict --requirement requirements/dev.txt --disable-pip --require-hashes --progress-spinner off $(AUDIT)

fmt: setup ##maintain: Format the code
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

lock: setup ##maintain: Resolve the pins again (asks the package index)
	sh tools/lock.sh

clean: ##maintain: Remove what the targets made
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

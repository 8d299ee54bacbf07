# Every target makes what it needs: the virtual environment, the pinned packages, nats-server.
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
SEEDS ?= 300
FROM ?= 0
JOBS ?= 2
STEPS ?= 100000
CYCLES ?= 10000
PODS ?= 500
KILLS ?= 10
TRACE_DIR ?= ../shared/traces

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-k8s kube-kills check sim schedules soak perf packing trace decisions images proto fmt docs lock clean

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/ready ## Make .venv with everything pinned

.venv/ready: requirements/dev.txt pyproject.toml tools/make_venv.sh
	sh tools/make_venv.sh $(PYTHON)

demo: setup ## Watch pods get MIG slices and give them back, on simulated GPUs
	$(BIN)/sluice demo

test: setup ## Run the tests
	$(BIN)/pytest -n 2 --dist worksteal -m "not perf and not exhaustive"

test-k8s: setup ## Run the Kubernetes tests on a real cluster, KUBECONFIG=file, in namespaces of their own
ifneq ($(origin KUBECONFIG),command line)
	@echo "say which cluster: make test-k8s KUBECONFIG=file (the environment's is not taken: it may be production)" >&2
	@exit 2
else
	SLUICE_TEST_KUBECONFIG="$(abspath $(KUBECONFIG))" $(BIN)/pytest tests/kubernetes
endif

kube-kills: setup ## Bring PODS=N pods to a fake cluster while the pod-watcher is killed KILLS=n times
	report=$$(mktemp); code=0; \
	KUBE_KILLS_PODS=$(PODS) KUBE_KILLS_KILLS=$(KILLS) KUBE_KILLS_REPORT=$$report \
	$(BIN)/pytest -q tests/e2e/test_kubernetes_kills.py || code=$$?; \
	cat $$report; rm -f $$report; exit $$code

check: setup ## Lint, types, import contracts, generated files, manifests; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/proto.py --check
	$(BIN)/python tools/docs.py --check
	$(BIN)/python tools/deploy_check.py
	sh tools/check_pins.sh

sim: setup ## Simulate SEEDS=N seeds from FROM=n on JOBS=j processes, and STEPS=N steps of the machines in tests/properties
	$(BIN)/python tests/simulation --seeds $(SEEDS) --from $(FROM) --jobs $(JOBS)
	$(BIN)/python tests/properties --steps $(STEPS)

schedules: setup ## Play the simulator's schedules with a crash at every step; `make test` plays some of them
	$(BIN)/pytest -n $(JOBS) -m exhaustive tests/simulation

soak: setup ## Make and unmake CYCLES=N slices with the agent killed at every step of its journal (some 15 minutes)
	$(BIN)/python tests/soak --cycles $(CYCLES)

perf: setup packing trace decisions ## Measure everything: those three, a running system, and start-up after much history
	$(BIN)/python tests/perf
	$(BIN)/python tests/perf/closing.py
	$(BIN)/python tests/perf/node_agent
	$(BIN)/python tests/perf/admission
	$(BIN)/python tests/perf/kubernetes

packing: setup ## Measure how well MIG instances are packed, against others and the ideal
	$(BIN)/python tests/perf/packing --jobs $(JOBS)
	$(BIN)/python tests/perf/packing/moves.py --jobs $(JOBS)

trace: setup ## Measure allocation on the openb trace in TRACE_DIR (skipped where there is none)
	TRACE_DIR=$(TRACE_DIR) $(BIN)/python tests/perf/trace --jobs $(JOBS)

decisions: setup ## Measure what a decision costs by size of the fleet (some minutes)
	$(BIN)/python tests/perf/decisions

images: setup ## Build the images of all services and of the broker (BASE_IMAGE=, TAG=; docs/install.md)
	sh deploy/docker/build.sh

proto: setup ## Generate the gRPC code from proto/
	$(BIN)/python tools/proto.py

docs: setup ## Generate docs/events.md and docs/json.md from the code
	$(BIN)/python tools/docs.py

fmt: setup ## Format the code
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

lock: setup ## Resolve the pins anew (asks the package index)
	sh tools/lock.sh

clean: ## Remove what the targets made
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

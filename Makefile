SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PROTO_VENV := .venv-protos
GENERATED := protos/gen
PROTO_FILES := $(sort $(wildcard protos/sfumato/*/v1/*.proto))
SOURCES := libs services clients/python

# Two threads on a busy small machine run many times slower and change bytes.
export OMP_NUM_THREADS ?= 1
export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: help setup demo serve check test test-slow protos bench format same-ast clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(VENV)/.ready ## make .venv with everything that development needs

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -q $(SOURCES) $(GENERATED) # as pip does for what it copies
	touch $@

$(PROTO_VENV)/.ready: tools/requirements-protos.txt
	$(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip install --quiet -r tools/requirements-protos.txt
	touch $@

protos: setup $(PROTO_VENV)/.ready ## generate the Python stubs from protos/; add what is new to their baseline
	$(PROTO_VENV)/bin/python tools/generate_protos.py $(GENERATED)
	$(BIN)/python tools/proto_baseline.py --update

demo: setup ## the main job end to end on real pictures, in demo-out/
	$(BIN)/python examples/demo.py --out demo-out

serve: setup ## all three services on 127.0.0.1:7433
	$(BIN)/sfumato serve

check: setup $(PROTO_VENV)/.ready ## format, lint, types, import contracts, stub drift, proto lint and breakage, sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/buf lint protos
	$(BIN)/buf format --diff --exit-code protos
	$(BIN)/python tools/proto_baseline.py
	$(PROTO_VENV)/bin/python tools/generate_protos.py --check $(GENERATED)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_sizes.py

test: setup ## the test suite
	$(BIN)/pytest -m 'not slow'

test-slow: setup ## the tests that take longer
	$(BIN)/pytest -m slow

bench: setup ## benchmarks: ours against a floor or rival in the same run
	$(BIN)/python -m benchmarks.run

format: setup ## format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/buf format --write protos

same-ast: setup ## prove that the change since BASE=rev left the syntax trees as they were
	$(BIN)/python tools/same_ast.py $(BASE)

clean: ## remove what the targets made
	rm -rf $(VENV) $(PROTO_VENV) build dist demo-out

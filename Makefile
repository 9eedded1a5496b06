# make demo | test | test-full | test-sglang | sglang-venv | lint | mutants | bench | site | dist | gpu-kit | setup | gpu. Each sets up what it needs.
#
# PYTHON=python3.12     the interpreter to make the environments with
# TORCH_INDEX=URL|DIR   where to take torch from: the URL of a package index, or a folder of wheels
# TORCH_SPEC='torch==…' which torch (without a GPU a CPU build is demanded)
# JOBS=4                how many test files run at once (each takes a core, and up to 6 GB for a moment)

SHELL := /bin/bash
VENV ?= .venv
SGLANG_VENV ?= .venv-sglang
PYTHON ?= $(firstword $(foreach name,python3 python3.12 python3.11 python3.13,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))) python3)

JOBS ?= 3
PYTEST = $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
MEMBERS := $(VENV)/.members
READY := $(VENV)/.ready
TORCH_SOURCE := $(if $(TORCH_INDEX),$(if $(wildcard $(TORCH_INDEX)/.),--find-links,--index-url) $(TORCH_INDEX))
PROJECTS := $(wildcard machine/pyproject.toml core/pyproject.toml sandbox/pyproject.toml toolkit/pyproject.toml testing/pyproject.toml cli/pyproject.toml plugins/*/*/pyproject.toml)

export TORCH_INDEX TORCH_SPEC

.PHONY: demo test test-full test-sglang sglang-venv lint mutants bench site dist gpu-kit setup gpu
.DELETE_ON_ERROR:

demo: $(MEMBERS)
	$(BIN)/rlcore train --algo grpo --model qwen3

# One thread each: a second one mostly waits for its share of a small matrix, and takes a core from another test.
test test-full test-sglang: export OMP_NUM_THREADS ?= 1

test: export HF_HUB_OFFLINE = 1
test: setup
	$(PYTEST) -m "not sglang and not full"

test-full: export HF_HUB_OFFLINE = 1
test-full: setup
	$(PYTEST) -m "not sglang" --durations=30

test-sglang: export HF_HUB_OFFLINE = 1
# A server of SGLang is three processes: with more of them, tests that publish amid an answer come too late.
test-sglang: JOBS = 2
test-sglang: setup sglang-venv
	RLCORE_SGLANG_PYTHON="$(abspath $(SGLANG_VENV))/bin/python" $(PYTEST) -m sglang --durations=30

sglang-venv:
	PYTHON=$(PYTHON) scripts/sglang_cpu_venv.sh $(SGLANG_VENV) $(TORCH_SOURCE)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

mutants: setup
	$(BIN)/python scripts/mutants.py

dist: setup
	$(BIN)/python scripts/dist.py

# What a GPU machine without a network needs, in build/gpu-kit.
gpu-kit: setup
	$(BIN)/python scripts/gpu_kit.py

bench: setup
	$(BIN)/python benchmarks/run.py

# The documentation as a site, in build/site.
site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

setup: $(READY)

# The set-up of a node with GPUs, in the versions of requirements-gpu.txt. Its Python is 3.12.
gpu:
	python3.12 -m venv $(VENV)
	$(BIN)/python -m pip install --no-deps -r requirements-gpu.txt
	$(BIN)/python -m pip install --no-deps --no-build-isolation -r requirements.txt
	$(BIN)/python -m pip check
	touch $(MEMBERS)
	@echo "now: $(BIN)/rlcore doctor --lock requirements-gpu.txt"

# What a demo needs, and with it the tools of a developer.
$(MEMBERS): $(PROJECTS) requirements.txt scripts/setup_venv.py
	$(PYTHON) scripts/setup_venv.py $(VENV) -r requirements.txt
	touch $@

$(READY): $(PROJECTS) requirements.txt requirements-dev.txt requirements-foreign.txt requirements-verifiers.txt requirements-ray-jobs.txt scripts/setup_venv.py
	$(PYTHON) scripts/setup_venv.py $(VENV) -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --ignore-requires-python -r requirements-foreign.txt
	rm -rf $(VENV)/verifiers-today $(VENV)/ray-jobs
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/verifiers-today -r requirements-verifiers.txt
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/ray-jobs -r requirements-ray-jobs.txt
	touch $(MEMBERS) $@

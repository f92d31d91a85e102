# `make run` and `make test` work on a fresh machine: both create .venv and install into it first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEV    := $(VENV)/.ready-dev
# Python compiles what it imports, a small part of what pip would compile.
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
NAME   ?= env
CONFIG ?= configs/quickstart.yaml
# The blocks of the documentation that need a library of their own.
EXAMPLES = tests/test_docs.py::test_blocks_that_need_an_optional_package_run
# Scripts that train the agents of other libraries, and the libraries that get an environment each.
SCRIPTS = tests/envs/adapters/test_examples.py
LIBRARIES = sb3-contrib tianshou rsl-rl-lib rl-games agilerl elegantrl brax
# ElegantRL asks for gym and Box2D, whose build fails; its agents need neither.
FLAGS_elegantrl = --no-deps
NEEDS_elegantrl = matplotlib
NEEDS_agilerl = peft
NEEDS_brax = "jax[cpu]"
# The tests of a library have its name in theirs; those of predictors train sb3-contrib's models.
WORD = $(subst -,_,$(patsubst %-lib,%,$(LIBRARY)))
MORE_sb3-contrib = or test_predictors
# Several threads per process slow small batches down by far; every process gets one.
export OMP_NUM_THREADS := 1
# Tests start hundreds of processes, each of which would compile all sources that it imports anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install run test test-all test-adapters test-library test-gcs test-gpu test-triton test-image test-wheel test-lowest lint types floors pytest app bench notebooks tutorials docs clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

install: $(READY) ## Create .venv and install fintrader with its app and report

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[app,report]"
	@touch $(READY)

# Contains what $(READY) stands for: one call of pip is quicker than two.
$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[dev]"
	@touch $(READY) $(DEV)

run: install ## Run the quickstart: a synthetic market, a small tournament, an honest backtest
	$(BIN)/fintrader run $(CONFIG)

test: lint floors ## Everything CI checks: format, lint, types, floors, and the quick tests
	$(MAKE) --no-print-directory -j 2 types pytest

test-all: lint types floors $(DEV) ## As test, with every test and more examples of each property; before a release
	FINTRADER_SLOW=1 FINTRADER_LIFE_SESSIONS=40000 FINTRADER_LIFE_MINUTE_SESSIONS=500 \
		$(BIN)/python -m pytest -n auto --dist worksteal --hypothesis-profile=thorough

lint: $(DEV) ## ruff: format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV) ## mypy strict on fintrader/ and app/
	$(BIN)/mypy

floors: $(DEV) ## import-linter: imports run downward only
	$(BIN)/lint-imports

pytest: $(DEV) ## The quick tests alone
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-adapters: ## The adapters and their examples, JAX, RLlib and MLflow included, in environments of their own
	test -x .venv-adapters/bin/python || $(PYTHON) -m venv .venv-adapters
	.venv-adapters/bin/python -m pip install --quiet -c constraints.txt "jax[cpu]" flax -e ".[adapters,mlflow]" \
		matplotlib stockstats pytest pytest-timeout hypothesis
	.venv-adapters/bin/python -m pip install --quiet --no-deps finrl==0.3.7
	.venv-adapters/bin/python -m pytest tests/envs/adapters tests/tournament/test_mlflow.py $(EXAMPLES)
	test -x .venv-rllib/bin/python || $(PYTHON) -m venv .venv-rllib
	.venv-rllib/bin/python -m pip install --quiet torch==2.13.0 "ray[rllib]" -e . pytest pytest-timeout hypothesis
	.venv-rllib/bin/python -m pytest tests/envs/adapters/test_rllib.py $(SCRIPTS) $(EXAMPLES)
	for library in $(LIBRARIES); do $(MAKE) test-library LIBRARY=$$library || exit 1; done

test-library: ## One library in an environment of its own, with its script: make test-library LIBRARY=rsl-rl-lib
	test -x .venv-$(LIBRARY)/bin/python || $(PYTHON) -m venv .venv-$(LIBRARY)
	.venv-$(LIBRARY)/bin/python -m pip install --quiet torch==2.13.0 -e . $(NEEDS_$(LIBRARY)) \
		pytest pytest-timeout hypothesis
	.venv-$(LIBRARY)/bin/python -m pip install --quiet $(FLAGS_$(LIBRARY)) $(LIBRARY)
	.venv-$(LIBRARY)/bin/python -m pip list | grep -iE "^($(LIBRARY)|torch|gymnasium|numpy) "
	.venv-$(LIBRARY)/bin/python -m pytest tests/envs/adapters tests/backtesting/test_predictors.py \
		-k "$(WORD) $(MORE_$(LIBRARY))"

test-gcs: ## Storage on gs:// against an emulator of Google's storage, in an environment of its own
	test -x .venv-gcs/bin/python || $(PYTHON) -m venv .venv-gcs
	.venv-gcs/bin/python -m pip install --quiet -c constraints.txt gcp-storage-emulator "moto[server]" -e ".[gcs,s3]" \
		pytest pytest-timeout hypothesis psutil
	.venv-gcs/bin/python -m pytest tests/storage tests/tournament/test_object_store.py -k "gs or gcs"

test-triton: ## The CUDA kernel without a GPU: compiled, and against the torch core in Triton's interpreter
	test -x .venv-triton/bin/python || $(PYTHON) -m venv .venv-triton
	.venv-triton/bin/python -m pip install --quiet -c constraints.txt triton -e . pytest pytest-timeout hypothesis
	.venv-triton/bin/python -m pytest tests/envs/fast/test_cuda.py
	TRITON_INTERPRET=1 .venv-triton/bin/python -m pytest tests/envs/fast/test_cuda_step.py

test-gpu: $(DEV) ## What needs a GPU, and its rates
	$(BIN)/python -m pytest -m gpu
	$(BIN)/python -m benchmarks.gpu --save

test-image: $(DEV) ## The container image's own build steps, in a clean environment (2 GB, no container engine needed)
	FINTRADER_TEST_IMAGE=1 $(BIN)/python -m pytest tests/containers/test_image_steps.py

test-wheel: $(DEV) ## The wheel, from outside the source tree
	$(BIN)/python -m pytest tests/test_wheel.py

test-lowest: ## Imports and short runs with the lowest versions that pyproject.toml declares, in their own environment
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python tools/lowest.py app report > .venv-lowest/lowest.txt
	.venv-lowest/bin/python -m pip install --quiet -c .venv-lowest/lowest.txt -e ".[app,report]" \
		pytest pytest-timeout hypothesis
	.venv-lowest/bin/python -m pytest tests/test_portable.py tests/metrics tests/envs/test_trading.py

app: install ## Serve the Streamlit app on the runs folder; it prints its address
	$(BIN)/fintrader app

bench: $(DEV) ## Run one benchmark: make bench NAME=env
	$(BIN)/python -m benchmarks.$(NAME)

notebooks: $(DEV) ## Execute the notebooks from top to bottom
	$(BIN)/python -m pytest tests/test_notebooks.py

tutorials: $(DEV) ## Run the tutorials on evolution, vector environments and simulators, and a short evolution
	$(BIN)/python -m pytest tests/test_docs.py -k "every_python_block and (evolution or vector-env or classic)"
	$(BIN)/fintrader run configs/generational.yaml --name short --runs-dir runs/tutorials \
		--tournament.pods 4 --tournament.pool-size 2 --tournament.survivors 1 \
		--tournament.budget.env-steps 4000 --data.source.num-sessions 60 --backtest.null-model false

docs: $(DEV) ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

clean: ## Remove the environment and caches (runs and data stay)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info

# `make run` and `make test` work on a fresh machine: both create .venv and install into it first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
NAME   ?= env
CONFIG ?= configs/quickstart.yaml
# Several threads per process slow small batches down by far; every process gets one.
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help install run test lint types floors pytest app bench notebooks clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

install: $(STAMP) ## Create .venv and install fintrader with everything tests and app need

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(STAMP)

run: install ## Run the quickstart: a synthetic market, a small tournament, an honest backtest
	$(BIN)/fintrader run $(CONFIG)

test: lint types floors pytest ## Everything CI checks: format, lint, types, floors, tests

lint: install ## ruff: format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install ## mypy strict on fintrader/
	$(BIN)/mypy

floors: install ## import-linter: imports run downward only
	$(BIN)/lint-imports

pytest: install ## The tests alone
	$(BIN)/python -m pytest -n auto --dist worksteal

app: install ## Open the Streamlit app on the runs folder
	$(BIN)/fintrader app

bench: install ## Run one benchmark: make bench NAME=env
	$(BIN)/fintrader bench $(NAME)

notebooks: install ## Execute the notebooks from top to bottom
	$(BIN)/python -m pytest tests/test_notebooks.py

clean: ## Remove the environment and caches (runs and data stay)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info

# Every target brings its own environment: .venv is made where it lacks and follows pyproject.toml.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help test lint format demo slow docs clean
.DEFAULT_GOAL := help

help:
	@echo "make test    the gate: format, lint, types, tests (all but the slow ones)"
	@echo "make lint    format, lint and types only"
	@echo "make format  rewrite the sources to the format"
	@echo "make slow    the slow tests"
	@echo "make docs    the pages as a site in build/site"
	@echo "make demo    a short tour"
	@echo "make clean   remove .venv, caches and builds"

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing geartrain and its tools into .venv (the first time takes minutes)"
	@$(BIN)/python -m pip install -qq -e '.[dev]'
	@touch $@

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Tests that start processes run alone, after the others, so that a rank has a core. pytest says 5 when it selects none.
test: lint
	$(BIN)/pytest -q -n $(JOBS) --dist loadgroup -m "not (multi or emu or gpu or slow)"
	$(BIN)/pytest -q -m "(multi or emu or gpu) and not slow" || [ $$? -eq 5 ]

slow: $(STAMP)
	$(BIN)/pytest -q -m slow || [ $$? -eq 5 ]

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

clean:
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

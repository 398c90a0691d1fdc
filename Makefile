# make demo and make test need nothing but Python 3.11+ and this clone: the virtual environment is made in .venv.
PYTHON ?= python3
DEVICE ?= cpu
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test test-slow lint format docs bench clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.demo ## train on real digits for a few minutes, end in a table and two pictures (out/demo)
	$(BIN)/python -m demo

test: $(VENV)/.dev ## lint and run the tests
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(VENV)/.dev ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev ## build the documentation into site/; a broken link fails
	$(BIN)/mkdocs build --strict --site-dir site

bench: $(VENV)/.dev ## measure promises and speed (DEVICE=cuda on a GPU), write results/*.json and docs/results.md
	$(BIN)/python -m benchmarks --device $(DEVICE)
	$(BIN)/python -m benchmarks --suite speed --device $(DEVICE)

clean: ## remove the environment and everything generated
	rm -rf $(VENV) out site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV), a few minutes the first time"
	$(BIN)/pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV), a few minutes the first time"
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.demo

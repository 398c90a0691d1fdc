# make demo and make test need nothing but Python 3.11+ and this clone: the virtual environment is made in .venv, with
# the package versions of constraints.txt, which are the ones that passed the tests.
PYTHON ?= python3
DEVICE ?= cpu
VENV ?= .venv
BIN := $(VENV)/bin
NEWEST := .venv-newest
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: help demo test test-all test-newest constraints lint format docs bench clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.demo ## train on real digits for three to five minutes, end in a table and two pictures (out/demo)
	$(BIN)/python -m demo

test: $(VENV)/.dev ## lint and run the tests, in at most five minutes
	$(BIN)/ruff check .
	$(PYTEST)

test-all: test ## make test, then the slower suites: interpreted kernels, browser, docs, demo, benchmarks
	$(PYTEST) -m slow

test-newest: ## make test-all with the newest versions of all packages, in an environment of its own
	rm -rf $(NEWEST)
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --quiet --editable '.[dev]'
	touch $(NEWEST)/.dev $(NEWEST)/.demo
	$(MAKE) VENV=$(NEWEST) test-all

constraints: test-newest ## make test-newest, then pin the versions that passed in constraints.txt
	$(NEWEST)/bin/pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==' > constraints.txt

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

clean: ## remove the environments and everything generated
	rm -rf $(VENV) $(NEWEST) out site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), a few minutes the first time"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), a few minutes the first time"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.demo

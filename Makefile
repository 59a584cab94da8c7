# Two commands do everything on a fresh machine: `make run` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON := .venv/bin/python
STAMP := .venv/.installed

.PHONY: help setup run test services lint fast fuzz lock docs bench clean

# Of `make fuzz`: which targets (all, if none is named), and for how long each.
TARGETS :=
SECONDS := 60

help: ## what can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup: $(STAMP) ## the environment in .venv, with the `penstock` command in .venv/bin

$(STAMP): requirements.lock pyproject.toml tools/setup.sh tools/java.sh tools/uv.sh
	@bash tools/setup.sh
	@touch $@

run: setup ## start the quickstart flow and keep it running
	@bash tools/quickstart.sh

test: setup services ## every check: format, lint, types, tests
	@$(MAKE) --no-print-directory lint
	$(PYTHON) -m tools.lanes

services: setup ## fetch the servers that tests talk to: Redis, PostgreSQL, Kafka; make Spark start faster
	$(PYTHON) -m tools.services
	$(PYTHON) -m tools.jvm

lint: setup ## format, lint and types only
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

fast: setup ## the tests that take seconds
	$(PYTHON) -m pytest -m 'not slow'

fuzz: setup ## look for bytes that break a parser: make fuzz [TARGETS="http config"] [SECONDS=600]
	$(PYTHON) -m tests.fuzz $(TARGETS) --seconds $(SECONDS)

lock: ## resolve the dependencies anew
	@bash tools/setup.sh lock

docs: setup ## write the pages of docs/reference that are made from the code
	$(PYTHON) -m tools.reference

bench: setup ## measure, as ratios beside peers on this machine
	$(PYTHON) -m bench.run

clean: ## remove the environment and what tests left
	rm -rf .venv .tools .java .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz

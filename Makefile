# Every target builds what it needs first. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
STAMP := .venv/.stamp
COMPILED := .venv/.compiled
RUN := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help env demo test check format bench docs constraints clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

env: $(COMPILED) ## Build .venv with pinned versions, and compile the core where a compiler is

$(STAMP): pyproject.toml constraints.txt tools/env.sh
	@PYTHON=$(PYTHON) tools/env.sh

$(COMPILED): $(STAMP) tools/compile.py $(wildcard src/bedplate/core/*.py src/bedplate/twin/*.py)
	@$(RUN) -m tools.compile
	@touch $@

demo: $(COMPILED) ## Serve real agent sessions on two embedded cards and show the result
	@$(RUN) -m bedplate.cli.main demo $(ARGS)

test: $(COMPILED) ## Run the tests; those that start services of their own one after the other
ifdef ARGS
	@$(RUN) -m pytest $(ARGS)
else
	@$(RUN) -m pytest -n 2 --dist worksteal tests/unit tests/property tests/sim
	@$(RUN) -m pytest tests/conformance tests/integration
endif

check: $(STAMP) ## Lint, format, types, layers, purity, sizes
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	PYTHONPATH=src .venv/bin/lint-imports
	$(RUN) -m tools.purity
	$(RUN) -m tools.tidy
	$(RUN) -m tools.tracked

format: $(STAMP) ## Format the code and fix what ruff can fix
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: $(COMPILED) ## Run the benches: make bench [NAME=spine] [ARGS=--quick]
	@$(RUN) -m bench run $(or $(NAME),all) $(ARGS)

docs: $(STAMP) ## Write the reference pages that come from the code
	@$(RUN) -m tools.config_reference
	@$(RUN) -m tools.scenario_reference

constraints: $(STAMP) ## Write constraints.txt from what .venv holds
	@$(RUN) -m tools.constraints
	@touch $(STAMP)

clean: ## Remove what the other targets built
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

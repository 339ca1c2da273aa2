# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help demo test check unit engine lock clean

help: ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Tracon needs Python 3.11 or newer, this is %d.%d: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --requirements requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

engine: $(STAMP) ## build the CPU engine environment (once, about a minute plus downloads)
	$(BIN)/tracon engine install cpu

demo: engine ## measure four KV connectors on real engines and watch them
	$(BIN)/tracon run connector-tax --profile cpu-tiny --preset demo --console

check: $(STAMP) ## lint, types, package order
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMP) ## tests without an engine
	$(BIN)/pytest -m "not engine"

test: check engine ## everything, real engines included
	$(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder -m "not timing"
	$(BIN)/pytest -m timing

lock: ## resolve requirements.lock again
	$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --no-emit-find-links --python-version 3.11 --extra dev pyproject.toml --output-file requirements.lock

clean: ## remove the console's environment (the engine's stays: `tracon engine list`)
	rm -rf .venv build *.egg-info

# Two commands do everything: `make demo` and `make test`.
PYTHON ?= $(shell for python in python3.11 python3 python3.13 python3.12; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
GPU_PROFILE := h200-qwen3-coder-30b-dummy
# Of `make gpu`: an environment that the host has, in place of Tracon's own; the configs to measure (empty = the preset's); and
# KEY=VALUE settings over the preset's, parted by blanks.
ENGINE_PYTHON :=
GPU_CONFIGS :=
GPU_SET :=
GPU_ENGINE = $(if $(ENGINE_PYTHON),--engine-python $(ENGINE_PYTHON))
# uv keeps its cache below HOME and fails where it may not write there.
ifeq ($(UV_CACHE_DIR)$(XDG_CACHE_HOME),)
ifneq ($(shell test -w "$$HOME" && echo writable),writable)
export UV_CACHE_DIR := $(CURDIR)/.venv/uv-cache
endif
endif

.PHONY: help demo gpu test test-long fuzz audit check unit engine lock clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml requirements.lock
	@host="$$(uname -sm)"; [ "$$host" = "Linux x86_64" ] || { \
		echo "Tracon runs on Linux on x86-64 only, and this is $$host: use a Linux x86-64 host." >&2; exit 1; }
	@[ -n "$(PYTHON)" ] || { \
		echo "Tracon needs Python 3.11, 3.12 or 3.13, and PATH has none of them: install one, or name it with make PYTHON=/path/to/python3.12." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "Tracon needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is %d.%d: name another with make PYTHON=python3.12." % sys.version_info[:2])'
	@$(PYTHON) -m venv .venv || { \
		echo "$(PYTHON) cannot make a virtual environment: install its venv module (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@awk '/^[^ ]/ {wanted = /^uv==/} wanted' requirements.lock >.venv/uv.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement .venv/uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirements requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

engine: $(STAMP) ## build the CPU engine environment (once, about a minute plus downloads)
	$(BIN)/tracon engine install cpu

demo: engine ## measure what three KV connectors cost, on real engines, and watch them
	@$(BIN)/tracon run connector-tax --profile cpu-tiny --preset demo --console; code=$$?; \
		echo "To use tracon in this shell: . $(BIN)/activate"; exit $$code

# The first check spares a host that cannot run engines the download; the second needs the environment.
gpu: $(STAMP) ## the same on a host with NVIDIA GPUs: check the host, build the CUDA environment (9.5 GB), measure (docs/gpu.md)
	@awk '/^[^ ]/ {wanted = /^nvidia-ml-py==/} wanted' launch/engines/cuda.lock >.venv/nvml.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirement .venv/nvml.lock
	$(if $(ENGINE_PYTHON),,$(BIN)/tracon doctor --profile $(GPU_PROFILE) --strict --before-install $(GPU_CONFIGS:%=--only %))
	$(if $(ENGINE_PYTHON),,$(BIN)/tracon engine install cuda)
	$(BIN)/tracon doctor --profile $(GPU_PROFILE) --strict $(GPU_ENGINE) $(GPU_CONFIGS:%=--only %)
	@$(BIN)/tracon run connector-tax --profile $(GPU_PROFILE) --preset gpu-demo $(GPU_ENGINE) $(GPU_CONFIGS:%=--config %) \
		$(foreach setting,$(GPU_SET),--set '$(setting)'); code=$$?; \
		echo "To use tracon in this shell: . $(BIN)/activate"; exit $$code

check: $(STAMP) ## lint, types, package order
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMP) ## tests without an engine
	$(BIN)/pytest -m "not engine"

TIMED := tests/benchmarks tests/launch tests/patches tests/runners/load
test: check engine ## everything, real engines included
	$(BIN)/pytest -n 3 --dist loadgroup --no-loadscope-reorder -m "not timing and not long"
	$(BIN)/pytest -m "timing and not long" $(TIMED)

LONG := long or property or (fault and not engine)
test-long: engine ## what CI leaves out: a batch of faults on real runs (continues where it was interrupted, else the next seed) and an hour of soak, every property and every kill of the state file 20 times as often, every config with AVX2 alone, the CUDA environment, simulations on Ray
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --requirements ray.lock
	TRACON_TEST_EXAMPLES=20 $(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder --timeout 3600 -m "($(LONG)) and not timing"
	TRACON_TEST_EXAMPLES=20 $(BIN)/pytest --timeout 3600 -m "($(LONG)) and timing"

FUZZ_S ?= 600
FUZZ := tests/fuzz
fuzz: $(STAMP) ## draw cases for every parser, FUZZ_S seconds each (31 parsers, 5 hours); FUZZ="FILE FILE::TEST" chooses some
	@parsers=$$($(BIN)/pytest -q --collect-only -m property $(FUZZ) | sed -n 's/^\(.*::[A-Za-z0-9_]*\).*/\1/p' | sort -u); \
	[ -n "$$parsers" ] || { echo "no parser is tested in $(FUZZ)" >&2; exit 1; }; \
	for parser in $$parsers; do \
		end=$$(($$(date +%s) + $(FUZZ_S))); \
		while [ "$$(date +%s)" -lt "$$end" ]; do \
			TRACON_TEST_EXAMPLES=20 $(BIN)/pytest -q --timeout 3600 "$$parser" || { failed="$$failed $$parser"; break; }; \
		done; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed: commit each case that failed with its fix (docs/reliability.md, Fuzz)" >&2; exit 1; }

AUDIT := $(BIN)/uvx pip-audit --disable-pip --require-hashes --strict
audit: $(STAMP) ## look up every pin in PyPI's list of known vulnerabilities (asks the network)
	$(AUDIT) -r requirements.lock
	$(AUDIT) -r ray.lock
	grep -v '+cpu' launch/engines/cpu.lock | $(AUDIT) -r /dev/stdin
	$(AUDIT) -r launch/engines/cuda.lock

# The extra `ray` has a lock of its own, with the pins of the first one: `make test-long` adds it to the same environment.
COMPILE := $(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --no-emit-index-url --no-emit-find-links --python-version 3.11 --generate-hashes
lock: ## resolve requirements.lock and ray.lock again
	$(COMPILE) --extra dev pyproject.toml --output-file requirements.lock
	$(COMPILE) --extra ray --constraint requirements.lock pyproject.toml --output-file ray.lock

clean: ## remove the console's environment (the engine's stays: `tracon engine list`)
	rm -rf .venv build *.egg-info

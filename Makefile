# Every target sets up what it needs. Python 3.11+ is all that must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-fast lint types check bench clean

help:
	@echo "make demo   install the embedded default into .venv-demo and serve it on http://127.0.0.1:8000"
	@echo "make test   install everything for development into .venv and run all tests"
	@echo "make lint   ruff and import-linter;  make types: mypy --strict on core"
	@echo "make bench  run the benchmarks of bench/ and print their tables"

.venv-demo/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	@touch $@

demo: .venv-demo/.installed
	.venv-demo/bin/omni launch $(ARGS)

test: $(VENV)/.installed
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup $(ARGS)

test-fast: $(VENV)/.installed
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m 'not slow' $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed
	$(BIN)/mypy

check: lint types test

bench: $(VENV)/.installed
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/hop.py
	$(BIN)/python bench/framework_cost.py
	$(BIN)/python bench/speech_latency.py
	$(BIN)/python bench/roundtrip.py
	$(BIN)/python bench/soak.py

clean:
	rm -rf .venv .venv-demo .venv-sglang dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

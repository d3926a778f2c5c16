# Everything a person or CI runs. `make demo` and `make test` are enough; the rest are their parts.
#
#   make PYTHON=python3.12 test     picks the interpreter that .venv is made from (3.11, 3.12 or 3.13)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The stamp carries the folder's name: a virtual environment does not survive a move of the checkout.
STAMP := $(VENV)/.setup-$(shell pwd | cksum | cut -d' ' -f1)
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -q

.DEFAULT_GOAL := help
.PHONY: help setup host gpu-tools oracle peers peers-table demo bench lint format test test-more test-full mutants golden proto clean distclean

help:
	@echo "make demo     set up .venv, build the bundled model for cpu, serve it, drive it with a gRPC client"
	@echo "make test     set up .venv, lint, types, import rules, all tests"
	@echo "make test-full    make test and the long forms of some tests: walks of 10,000 operations and the like"
	@echo "make mutants  planted faults that the fast tests have to find; RANDOM=200 SEED=1, ONLY=M01,M22, SLOW=1, JOBS=2"
	@echo "make setup    only .venv            make lint     ruff, basedpyright, import rules"
	@echo "make gpu-tools    NVRTC and LLD, which make binaries of kernels for GPUs; make test asks for them"
	@echo "make oracle   torch and transformers for live parity tests (CPU build only)"
	@echo "make bench    speed of ds4c beside llama.cpp and transformers (the latter after make oracle)"
	@echo "make peers    transformers, llama.cpp and mlx-vlm for the tests marked peers"
	@echo "make peers-table   rewrite docs/peers.md: rewind of each peer that is installed, side by side"
	@echo "make golden   rewrite the golden vectors (needs make oracle)      make proto    rewrite the gRPC stubs"
	@echo "make format   ruff format and fixes      make clean    out/ and caches      make distclean    also .venv"

setup: $(STAMP)

# One line for each thing that a bare machine may lack, before pip says it in forty.
host:
	@command -v $(PYTHON) >/dev/null || { echo "setup: expected $(PYTHON), got nothing on PATH; install Python 3.11-3.13 or pass PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "setup: expected Python 3.11-3.13, got $$($(PYTHON) -V 2>&1 | head -n1); pass PYTHON=python3.12 or another" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "setup: expected the venv module, got a Python without it; apt-get install python3-venv" >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "setup: expected g++, got nothing on PATH; apt-get install g++" >&2; exit 1; }

$(STAMP): pyproject.toml | host
	@$(PIP) --version >/dev/null 2>&1 || { echo "setup: creating $(VENV) with $$($(PYTHON) -V)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "setup: installing ds4c with its build and test tools into $(VENV)"
	@$(PIP) install -q -e '.[build,test]'
	@rm -f $(VENV)/.setup-*
	@touch $@

# Where they cannot be installed, the tests of binaries are skipped and say so.
gpu-tools: setup
	@$(BIN)/python -c 'import cuda.bindings.nvrtc, ziglang, importlib.metadata as m; m.version("nvidia-cuda-nvrtc")' 2>/dev/null || \
	  $(PIP) install -q -e '.[build,test,cuda-build,rocm-build]' || \
	  echo "gpu-tools: no NVRTC or LLD for this machine; tests of GPU binaries are skipped"

oracle: setup
	@$(BIN)/python tools/install_oracle.py

peers: setup
	@$(BIN)/python -c 'import gguf, matplotlib' 2>/dev/null || $(PIP) install -q -e '.[build,test,peers]'
	@$(BIN)/python -m benchmarks.peers_rewind.install

peers-table: setup
	@$(BIN)/python -m benchmarks.peers_rewind

demo: setup
	@$(BIN)/python demo/run_demo.py

# A peer that cannot run here is named and left out. BENCH="--pairs 7 --weights f32" passes options.
bench: setup
	@$(BIN)/python -c 'import gguf, matplotlib' 2>/dev/null || $(PIP) install -q -e '.[build,test,peers]'
	@$(BIN)/python -m benchmarks $(BENCH)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tests that measure time or need both cores are marked `serial` and run alone, after the others. A worker that
# dies fails the run at once: xdist can wait forever for the files of a worker that it replaced.
test: lint gpu-tools
	$(PYTEST) -n 2 --dist loadfile --max-worker-restart=0 -m "not serial and not more and not full"
	$(PYTEST) -m "serial and not more and not full"

# Real clients, load, fuzzing and long forms: what CI runs after `make test`, at most 25 minutes.
test-more: setup
	$(PYTEST) -n 2 --dist loadfile --max-worker-restart=0 -m "more and not serial"
	$(PYTEST) -m "more and serial"

# What takes many minutes each; by hand.
test-full: setup
	$(PYTEST) -m full

# Exit code 1 if a fault is not found. RANDOM=N plants changes of N random lines instead of the catalogue.
mutants: setup
	PYTHONHASHSEED=0 $(BIN)/python -m tools.mutants --jobs $(or $(JOBS),2) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(RANDOM),--random $(RANDOM) --seed $(or $(SEED),0)) $(if $(SLOW),--slow)

golden: setup
	$(BIN)/python tools/golden/make_golden.py

proto: setup
	$(BIN)/python tools/gen_proto.py

clean:
	rm -rf out build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)

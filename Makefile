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
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0
MEASURED := $(BIN)/python tools/measured.py
# Must be what tests/shared_cache.py takes.
TEST_CACHE := $(or $(DS4C_TEST_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ds4c-tests)

.DEFAULT_GOAL := help
.PHONY: help setup host gpu-tools oracle peers peers-table demo bench lint format test test-more test-full mutants run-test run-more run-full durations golden proto clean distclean

help:
	@echo "make demo     set up .venv, build the bundled model for cpu, serve it, drive it with a gRPC client"
	@echo "make test     set up .venv, lint, types, import rules, all tests that a change must pass"
	@echo "make test-more    real clients, load, fuzzing, long forms: 25 minutes at most; CI runs it after make test"
	@echo "make test-full    the longest forms of some tests: walks of 10,000 operations and the like"
	@echo "make mutants  planted faults that the fast tests have to find; RANDOM=200 SEED=1, ONLY=M01,M22, SLOW=1, JOBS=2"
	@echo "make setup    only .venv            make lint     ruff, basedpyright, import rules"
	@echo "make gpu-tools    NVRTC and LLD, which make binaries of kernels for GPUs; make test asks for them"
	@echo "make oracle   torch and transformers for live parity tests (CPU build only)"
	@echo "make bench    speed of ds4c beside llama.cpp and transformers (the latter after make oracle)"
	@echo "make peers    transformers, llama.cpp and mlx-vlm for the tests marked peers"
	@echo "make peers-table   rewrite docs/peers.md: rewind of each peer that is installed, side by side"
	@echo "make golden   rewrite the golden vectors (needs make oracle)      make proto    rewrite the gRPC stubs"
	@echo "make durations    rewrite tests/durations.json: what each file of tests costs, for their order"
	@echo "make format   ruff format and fixes      make clean    out/ and caches, that of the tests too"
	@echo "make distclean    also .venv"

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

# Each prints the CPU-seconds of all its processes at its end; the budget is that of a run with a cold cache.
test: gpu-tools
	@$(MEASURED) "make test" --budget 850 -- $(MAKE) --no-print-directory lint run-test

# Real clients, load, fuzzing and long forms: what CI runs after `make test`. After 25 minutes no test begins.
test-more: gpu-tools
	@$(MEASURED) "make test-more" --minutes 25 -- $(MAKE) --no-print-directory run-more

# What takes many minutes each; by hand.
test-full: gpu-tools
	@$(MEASURED) "make test-full" -- $(MAKE) --no-print-directory run-full

# Files go to the workers in our order, the costliest first. A worker that dies fails the run at once: xdist can
# wait forever for the files of a worker that it replaced. Tests that measure time or need both cores are marked
# `serial` and run alone.
run-test:
	$(PYTEST) $(WORKERS) --costs -m "not serial and not more and not full"
	$(PYTEST) -m "serial and not more and not full"

run-more:
	$(PYTEST) --may-be-empty -m "more and serial"
	$(PYTEST) $(WORKERS) --may-be-empty --costs -m "more and not serial"

run-full:
	$(PYTEST) --may-be-empty -m "full and serial"
	$(PYTEST) $(WORKERS) --may-be-empty --costs -m "full and not serial"

# After a change of many tests: what each file costs, for the order above. Run it with a cache that is empty.
durations: gpu-tools
	$(PYTEST) $(WORKERS) --costs --write-durations -m "not serial and not more and not full"

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
	rm -rf "$(TEST_CACHE)"
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)

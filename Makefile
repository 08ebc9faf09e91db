# `make demo` and `make test` need nothing but Python 3.10 or later, pip and make.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 10))
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '$(NEW_ENOUGH)' 2>/dev/null && command -v $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
PYTEST_ARGS ?=
VERSIONS_ARGS ?=

# For what builds this package as well, which pip installs apart and without regard to its own -c: pip before 25.3 hands
# the first of these on to it, later ones want the second.
LOCKED := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt

# What the demo trains on: make demo BACKEND=jax, or BACKEND=torch, where one process trains
BACKEND ?= tensorflow
DEMO_WORKERS := $(if $(filter torch,$(BACKEND)),1,2)
WITH_TORCH := $(if $(filter torch,$(BACKEND)),$(VENV)/ready-torch)

# Quiet TensorFlow, plain arithmetic. Two workers cannot share one GPU, so the demo trains on the CPU.
DEMO_ENV := KERAS_BACKEND=$(BACKEND) TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 CUDA_VISIBLE_DEVICES=-1 \
	JAX_PLATFORMS=cpu

# A container may forbid Python to keep what it compiles. Then each of some hundred processes compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test durations versions lint types chaos slurm bench docs docs-check lock clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: $(READY) ## Create .venv with the package and everything it is developed with

demo: $(READY) $(WITH_TORCH) ## Train real digits with 2 workers, preempt them twice, and compare every bit (up to 3 minutes; BACKEND=jax or torch)
	$(DEMO_ENV) $(BIN)/keras-preempt $(subst 2 --pre,$(DEMO_WORKERS) --pre,drill --workers 2 --preempt 2 --seed 1 --standby) -- \
		$(BIN)/python examples/digits.py runs/digits

test: lint ## Lint, types and all tests but the long ones (25 to 30 minutes; DURATIONS=1 keeps what they take)
	$(BIN)/python -m tests.stages $(if $(DURATIONS),--renew) $(PYTEST_ARGS)

durations: $(READY) ## Show which files of tests take longest, and what each stage and step of .ci/run takes
	$(BIN)/python -m tests.durations

versions: $(READY) ## Canaries and a drill with the oldest and newest Keras and TensorFlow, each Python, PyTorch (30 minutes)
	$(BIN)/python tests/versions/verify.py $(VERSIONS_ARGS)

lint: $(READY) ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

types: $(READY) ## Check the types for the newest Python, too
	$(BIN)/mypy --python-version 3.13

chaos: $(READY) ## Run all tests that make test leaves out: long campaigns, further cases, benchmarks, the site (hours)
	PATH="$$PATH:/usr/sbin" $(if $(FRESH),KERAS_PREEMPT_FRESH_PROCESSES=1) $(BIN)/python -m pytest \
		-m 'chaos or bench or docs' $(PYTEST_ARGS)

slurm: $(READY) ## Run examples/slurm under a real Slurm, started for it (minutes; needs slurm-wlm and munge)
	PATH="$$PATH:/usr/sbin" $(BIN)/python -m tests.slurm.verify $(PYTEST_ARGS)

bench: $(READY) ## Run all benchmarks, print the ratios, write benchmarks/figures.md (30 minutes; QUICK=1: small, as tests)
ifdef QUICK
	$(BIN)/python -m pytest -m bench $(PYTEST_ARGS)
else
	$(BIN)/python benchmarks/all.py
	$(BIN)/python benchmarks/all.py --jax
endif

docs: $(READY) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-check: $(READY) ## Check that the generated documentation is current, and the site in a browser if there is one
	$(BIN)/python docs/alignment_diagram.py --check
	$(BIN)/python docs/architecture_table.py --check
	$(BIN)/python docs/ways_table.py --check
	$(BIN)/python docs/gallery_table.py --check
	$(BIN)/python docs/cost.py --check
	$(BIN)/python docs/events_table.py --check
	$(BIN)/python docs/ratios_table.py --check
	$(BIN)/python docs/alignment_picture.py --check
	$(BIN)/python docs/rooms_picture.py --check
	$(BIN)/python docs/timeline_picture.py --check
	$(BIN)/python -m pytest -q -m docs tests/docs tests/report tests/test_example.py tests/test_example_jax.py

lock: $(READY) ## Renew constraints.txt, which says what `make setup` installs
	$(BIN)/python -m pip install -qq --disable-pip-version-check 'uv>=0.9'
	{ head -n 1 constraints.txt; \
		$(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.10 --no-header --no-annotate \
		--no-emit-index-url --extra tensorflow --extra examples --extra dev --extra docs pyproject.toml; \
	} > constraints.new
	mv constraints.new constraints.txt

clean: ## Remove .venv, caches and builds
	rm -rf $(VENV) .venv-* build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@"$(or $(PYTHON),false)" -c '$(NEW_ENOUGH)' || { \
		echo "Expected python3.11, or python3 of version 3.10 or later. Received: '$(PYTHON)'." \
			"Name another one: make PYTHON=/path/to/python" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@echo "Installing TensorFlow and the development tools into $(VENV); this takes some minutes once."
	$(LOCKED) $(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[tensorflow,examples,dev,docs]'
	@touch $(READY)

# One that is there already is taken, such as one of PyTorch's own wheels without CUDA.
$(VENV)/ready-torch: $(READY)
	@echo "Installing torch into $(VENV): 3 GB, unless it is there."
	$(LOCKED) $(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[torch]'
	@touch $@

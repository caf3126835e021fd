# `make quickstart` and `make test` do everything on a fresh clone; PYTHON may name another Python 3.11 or 3.12.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup quickstart test chaos lint docs clean

setup: .venv/.installed

PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# torch comes first, with what its build for this machine needs; the rest is pinned whole, so nothing is resolved again.
# All is compiled on all processors at the end: where Python writes no bytecode of its own, each process would do so anew.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --no-compile -c constraints.txt torch
	$(PIP) install --no-compile --no-deps -r constraints.txt
	$(PIP) install --no-deps -e .
	$(PIP) check
	$(BIN)/python -m compileall -q -j 0 -x '/tests?/|torch/testing/_internal/' .venv/lib
	touch $@

quickstart: setup
	$(BIN)/mcnn quickstart

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Compiled first, as hundreds of processes are started, and not all machines let Python keep what it compiles.
# Then what numba compiles for the lite server, or else the first servers of some tests would all do so at once.
# Types are checked meanwhile: tests wait now and then. Files in their order, as those whose few tests take long come early.
test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m compileall -q -j 0 mcnn_ray tests
	$(BIN)/python -c 'import mcnn_ray.carla.lite.server'
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder; \
	  tests=$$?; wait $$types && exit $$tests

# What takes long: random kills by 20 seeds, a lost node, a tracking server that is away, machines over ssh, jobs.
chaos: setup
	$(BIN)/python -m pytest -m long

# Pages to read from a disk: build/site/index.html. Nothing is fetched.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis build *.egg-info

# `make quickstart` and `make test` do everything on a fresh clone; PYTHON may name another Python 3.11 or 3.12.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup quickstart test lint clean

setup: .venv/.installed

# torch comes first and alone, so that the pinned build is taken before anything else asks for "a torch".
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

quickstart: setup
	$(BIN)/mcnn quickstart

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

clean:
	rm -rf .venv .mypy_cache .ruff_cache .hypothesis build *.egg-info

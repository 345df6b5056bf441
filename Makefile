# make search: set everything up and run the main job.   make test: set everything up, lint, types, tests.
# make test-all: with the proofs that take long.   make test-changed: such proofs of rooms that changed since the last release.
# make test-cluster: the tests of Ray, the dashboard and the loggers, in an environment of their own.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# the commands that the program prints begin with plain `python`
ACTIVATE = echo "Further commands need the environment: . $(BIN)/activate"

.PHONY: help setup search test test-all fast-tests every-test test-changed test-cluster lint bench bench-test docs wheel clean

help:
	@sed -n '1,3p' Makefile; echo "make bench: the quicker benchmarks.   make bench-test: their tests.   make docs: build site/.   make wheel: build dist/*.whl.   make clean"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 14), "Python 3.11 to 3.13 is needed (PYTHON=python3.12)"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[test]'
	-$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib  # pip would do it with one process
	touch $@

setup: $(READY)
	@$(ACTIVATE)

search: $(READY)
	$(BIN)/python -m l2l_nas search search.baseline=random
	@$(ACTIVATE)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# processes that test at once: one more than the two cores that are asked for, as many tests wait for what they started
WORKERS ?= 3
# tests write no bytecode, and start hundreds of processes that would compile the package
PYTEST = $(BIN)/python -m compileall -q l2l_nas && $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: lint fast-tests

fast-tests: $(READY)
	$(PYTEST) -m "not slow"

# the proofs that take long as well: processes that are killed, sweeps, wheels, compilers
test-all: lint every-test

every-test: $(READY)
	$(PYTEST)

# of those proofs, the ones of rooms that changed since the last release; pytest says 5 where none is slow
test-changed: $(READY)
	paths=`$(BIN)/python -m tests.changed` && { test -z "$$paths" || { $(PYTEST) -m "slow and not long" $$paths; } || test $$? = 5; }

# what Ray, the dashboard and the loggers bring along is large, and no other test needs it
CLUSTER := $(VENV)-cluster
test-cluster:
	$(PYTHON) -m venv $(CLUSTER)
	$(CLUSTER)/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[test,ray,dashboard,loggers]'
	$(CLUSTER)/bin/python -m pytest -m cluster -rs tests/cli tests/nas tests/report

bench: $(READY)
	for name in depth throughput small_networks search_quality; do \
		$(BIN)/python -m benchmarks $$name || exit 1; done

# all tests of the benchmarks; make test has the quick ones
bench-test: $(READY)
	$(PYTEST) tests/benchmarks

docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/settings_page.py
	$(BIN)/python -m mkdocs build --strict

wheel: $(READY)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) $(CLUSTER) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

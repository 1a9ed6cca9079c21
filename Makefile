# Each target makes its own environment first; `make help` lists the targets.
PYTHON ?= python3
# The clone comes first on the path, so that an environment shared by several clones runs this one.
export PYTHONPATH := $(CURDIR)
PY := "$(or $(TDI_VENV),.venv)/bin/python"
# A process for each core, of a few: each has PyTorch in memory.
PYTEST := $(PY) -m pytest -n logical --maxprocesses 4
# The oldest release of each minor version that is supported, next to the newest of all.
LIGHTNINGS := 2.5.0 2.6.0

.DEFAULT_GOAL := help
.PHONY: help ready demo test test-full test-lightning bench lint types format clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

ready: ## make the environment, or find it ready
	@$(PYTHON) scripts/set_up.py

demo: ready ## train on real data, kill the training three times, resume it bit for bit (ARGS=--help)
	@$(PY) -m examples.storm_forecast $(ARGS)

test: ready ## the tests, without those marked slow, gpu or network
	@$(PYTEST) -m "not slow and not gpu and not network"

test-full: ready test-lightning ## all the tests this machine can run
	@$(PYTEST) -m "not network"

test-lightning: ready $(LIGHTNINGS:%=build/lightning-%) ## the tests of the Lightning part over its oldest releases
	@for release in $(LIGHTNINGS); do \
		echo "lightning $$release"; \
		JSONARGPARSE_DEPRECATION_WARNINGS=off PYTHONPATH=build/lightning-$$release:$(CURDIR) $(PYTEST) -m "not network" tests/lightning_ || exit 1; \
	done

# Laid over the environment, which has the newest release.
build/lightning-%: | ready
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target $@.new lightning==$*
	@rm -rf $@ && mv $@.new $@

bench: ready ## measure against other loaders: tables, build/bench/bench.json and .png (ARGS=--help)
	@$(PY) -m benchmarks.run $(ARGS)

lint: ready ## ruff: rules and format
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: ready ## mypy, strict
	@$(PY) -m mypy

format: ready ## apply ruff's fixes and format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

clean: ## remove what the targets made, the environment too
	rm -rf .venv .venv.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	rm -rf examples/storm_forecast/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

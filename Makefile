# make          what there is
# make demo     the main job on a table it makes itself
# make test     all checks and tests, as CI runs them
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test heavy browser lint unit quality bench format image clean

# Tests wait for processes more than they compute. A file stays with one process: it shares its Ray and its model.
SIDE_BY_SIDE := --numprocesses 2 --dist loadfile --no-loadscope-reorder
RAY_CFNET_DATA ?= ../shared/data
APT_INSTALL = DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@echo "installing into $(VENV) (about two minutes the first time)"
	@$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13), "Python 3.11 to 3.13 is needed"'
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)  ## Train, explain and evaluate on synthetic loan applications
	@$(BIN)/ray-cfnet demo

test: $(READY) lint browser  ## Lint, type check and run all tests but the heavy ones
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not heavy"

heavy: $(READY)  ## The tests that take minutes each
	$(BIN)/python -m pytest -m heavy

browser:  ## Chromium, for the tests of the report; without it they skip
	@command -v chromium chromium-browser google-chrome > /dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get > /dev/null && echo "installing chromium" && \
		{ $(APT_INSTALL) || { apt-get update -qq && $(APT_INSTALL); } } > /dev/null 2>&1; } || \
		echo "no chromium, and no way to install it: the tests of the report in a browser will skip"

unit: $(READY)  ## Only the tests that need no Ray
	$(BIN)/python -m pytest tests/unit $(SIDE_BY_SIDE)

lint: $(READY)  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

quality: $(READY)  ## The paper's tables, three seeds each, into benchmarks/results (about an hour; needs RAY_CFNET_DATA)
	$(BIN)/python jobs/reproduce.py --data $(RAY_CFNET_DATA) --datasets cancer heloc credit adult oulad covertype \
		--seeds 0 1 2 --output benchmarks/results/quality.md

bench: $(READY)  ## All speed and memory ratios (long; wants a quiet machine)
	$(BIN)/python benchmarks/training.py all
	$(BIN)/python benchmarks/explain.py all

format: $(READY)  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

image:  ## Build the container image for k8s/ (Dockerfile says how for GPUs)
	docker build --tag ray-cfnet:$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) .

clean:  ## Remove the environment and all that was made
	rm -rf $(VENV) build dist out data .pytest_cache .mypy_cache .ruff_cache .hypothesis

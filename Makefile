# fedpilot: `make quickstart` trains a federation, `make test` runs the tests. `make help` lists the rest.

PYTHON ?= $(firstword $(shell command -v python3.11 python3 2>/dev/null))
VENV   ?= .venv
BIN    := $(VENV)/bin
TESTS  := $(BIN)/python -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder
# Of a package's modules few are ever imported: Python compiles those, then, and keeps them.
unexport PYTHONDONTWRITEBYTECODE
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt

.PHONY: help quickstart test floor check soak mutants proto docs bench install dev clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-11s %s\n", $$1, $$2}'

$(BIN)/python:
	@echo "==> creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit("fedpilot needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(BIN)/python pyproject.toml constraints.txt
	@echo "==> installing fedpilot (PyTorch and Ray take a minute)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "==> installing what the tests and checks need"
	@$(PIP) --editable '.[dev]'
	@touch $@

install: $(VENV)/.runtime ## create .venv and install fedpilot into it
dev: $(VENV)/.dev ## the same, with what the tests and checks need

quickstart: $(VENV)/.runtime ## train a federation on the digits data set and draw its curves
	@echo "==> fedpilot doctor --warm (compiles the training code, once)"
	@$(BIN)/fedpilot doctor --warm > /dev/null || true
	@echo "==> fedpilot run configs/quickstart.yaml"
	@$(BIN)/fedpilot run configs/quickstart.yaml

test: $(VENV)/.dev ## run the tests a contributor runs (minutes)
	@echo "==> pytest (without the slow ones, which .ci/run adds)"
	@$(TESTS) -m "not slow and not soak" $(ARGS)

# The oldest Ray that pyproject.toml admits, beside the pinned one: found first by whoever imports it.
FLOOR     := $(shell sed -n 's/^ *"ray>=\([0-9.]*\),.*/\1/p' pyproject.toml)
FLOOR_RAY := $(VENV)/ray-$(FLOOR)
CONTRACTS := tests/fabric/ray/test_private_ray.py tests/fabric/ray/test_cluster_contract.py

$(FLOOR_RAY)/.installed: $(VENV)/.dev
	@echo "==> installing Ray $(FLOOR) beside the pinned one"
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --no-deps --upgrade \
	  --target $(FLOOR_RAY) ray==$(FLOOR)
	@touch $@

floor: $(FLOOR_RAY)/.installed ## fabric's contract tests on the oldest Ray that is supported
	@echo "==> pytest on Ray $(FLOOR)"
	@PYTHONPATH=$(abspath $(FLOOR_RAY)) $(BIN)/python -m pytest -q $(CONTRACTS)

check: $(VENV)/.dev ## ruff, mypy --strict, import-linter
	@echo "==> ruff check" && $(BIN)/ruff check .
	@echo "==> ruff format --check" && $(BIN)/ruff format --check .
	@echo "==> mypy --strict" && $(BIN)/mypy
	@echo "==> import-linter" && $(BIN)/lint-imports

soak: $(VENV)/.dev ## the full counts of kills and random inputs (long; before a release)
	@echo "==> kills at random moments"
	@$(BIN)/python -m pytest -q -m soak $(ARGS)
	@echo "==> random inputs by the thousand"
	@HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -q -n 2 -m "hypothesis and not ray and not soak" --timeout 7200 \
	  tests/common tests/fabric tests/federated tests/mediator $(ARGS)

mutants: $(VENV)/.dev ## small faults in the shells, one at a time: the tests named in each must fail
	@PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

proto: $(VENV)/.dev ## generate the code of the protobuf messages anew, beside their .proto files
	@cd src && find -L . -name '*.proto' -printf '%P\n' | sort | xargs ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=.

docs: $(VENV)/.dev ## write the reference pages anew and build the site into site/
	@$(PIP) --editable '.[dev,docs]'
	@echo "==> docs/reference from the code" && $(BIN)/python docs/generate.py
	@echo "==> mkdocs build --strict" && $(BIN)/python -m mkdocs build --strict --quiet

bench: $(VENV)/.dev ## clients per second beside a plain PyTorch loop, and the peers that are installed
	@$(BIN)/python benchmarks run $(ARGS)

clean: ## remove .venv, caches and build products (runs/ stays)
	rm -rf $(VENV) build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Two commands for a new machine: `make audit` and `make test`. Both do their own set-up, once.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN    := .venv/bin
STAMP  := .venv/.ready
# Small matrices lose more to thread hand-over than they gain; pytest and BLAS would fight for two cores.
THREADS ?= 1

.PHONY: setup audit test lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@sh tools/browser.sh
	@touch $(STAMP)

audit: setup
	OMP_NUM_THREADS=$(THREADS) $(BIN)/foldline audit --out report

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint
	OMP_NUM_THREADS=$(THREADS) $(BIN)/pytest

clean:
	rm -rf .venv report

# Every command that README.md, .ci/run and the CI workflow name is here and only here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: test lint bench docs clean

test: $(INSTALLED)
	$(BIN)/python -m pytest $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
# SQLite itself reads each of its statements in the tests; sqlfluff does not know all of its grammar.
	$(BIN)/sqlfluff lint --dialect sqlite --ignore parsing sql/sqlite
	$(BIN)/sqlfluff lint --dialect postgres sql/postgresql
	$(BIN)/sqlfluff lint --dialect tsql sql/mssql

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

docs: $(INSTALLED)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,mssql,postgresql,solar]'
	touch $@

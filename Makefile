# Every command that README.md, .ci/run and the CI workflow name is here and only here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The versions that everybody develops with. `make LOCK= ...` takes the newest that the ranges allow.
LOCK := constraints-dev.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
# Tests start hundreds of processes; without cached bytecode each of them compiles the package.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help test lint coverage api lock demo chaos bench simulate mutants renames docs sql up down mssql odbc pgbouncer clean

help: ## this list
	@sed -n -E 's/^([a-z]+):[^#]*## (.+)$$/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'
	@echo "  $(INSTALLED)  installs what the targets need, which they do by themselves"

# By files, in their order: the long ones with real processes come before the short ones. They wait a lot, hence two more than cores.
test: $(INSTALLED) ## all tests, or a part: make test ARGS='-m "not slow" tests/unit'
	$(BIN)/python -m pytest --numprocesses $$(( $$($(BIN)/python -c 'import os; print(os.cpu_count())') + 2 )) \
		--dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(INSTALLED) ## ruff, mypy --strict, import-linter, sqlfluff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
# SQLite itself reads each of its statements in the tests; sqlfluff does not know all of its grammar.
	$(BIN)/sqlfluff lint --processes 0 --dialect sqlite --ignore parsing sql/sqlite
	$(BIN)/sqlfluff lint --processes 0 --dialect postgres sql/postgresql
	$(BIN)/sqlfluff lint --processes 0 --dialect tsql --config sql/mssql.sqlfluff sql/mssql
	$(BIN)/sqlfluff lint --processes 0 --dialect tsql infra/compose
# Neither does it know JSON_TABLE as a table to update; MariaDB reads each of these statements in the tests.
	$(BIN)/sqlfluff lint --processes 0 --dialect mysql --config sql/mysql.sqlfluff --ignore parsing sql/mysql

coverage: $(INSTALLED) ## the unit tests, and what share of the package they reach; fails below the floor
	$(BIN)/python -m pytest --quiet --numprocesses auto --cov --cov-report= tests/unit
	$(BIN)/coverage report --skip-covered --sort cover $(ARGS)

api: $(INSTALLED) ## rewrites tests/public_api.txt after a change of public names that is meant
	$(BIN)/python -m tests.public_api

lock: $(INSTALLED) ## the newest versions for development, into constraints-dev.txt
	$(PIP) install --quiet 'uv>=0.9'
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --all-extras --group dev \
		--no-annotate --no-emit-index-url --custom-compile-command 'make lock' --output-file constraints-dev.txt pyproject.toml

# What the demonstration needs is quickly installed; where everything is installed already, that will do.
DEMO := $(if $(wildcard $(INSTALLED)),$(VENV),.venv-demo)

demo: $(DEMO)/.installed ## a minute of beats and workers that are killed, and an audit of every slot
	@$(DEMO)/bin/celery sqlbeat demo $(ARGS)

chaos: $(INSTALLED) ## a storm over real processes: make chaos MINUTES=60 DATABASE=sqlite BROKER=rabbitmq SEED=7
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(if $(DATABASE),--database $(DATABASE)) \
		$(if $(BROKER),--broker $(BROKER)) $(if $(SEED),--seed $(SEED))

bench: $(INSTALLED) ## rates, as ratios measured in one run
	$(BIN)/python -m benchmarks

simulate: $(INSTALLED) ## beats, workers and clocks in one seeded process: make simulate SEED=7 STEPS=100000
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS)) $(if $(ONLY),--only $(ONLY))

# The simulation has the statements of SQLite; what a bug does in those of another database, the contract has to show.
mutants: $(INSTALLED) ## plants bugs, each of which must be found: make mutants NAME=... DATABASE=mysql
	$(BIN)/python -m $(if $(DATABASE),tests.contract.mutants --database $(DATABASE),tests.simulation.mutate $(if $(SEED),--seed $(SEED))) \
		$(if $(NAME),--name '$(NAME)')

# Real workers and beats beside libraries in which upstream has renamed one symbol that we need, for each of them.
renames: $(INSTALLED) ## real processes beside libraries in which one private name is another, for each name
	SQLBEAT_TEST_RENAMES_ALL=1 $(BIN)/python -m pytest --numprocesses 2 tests/process/test_renamed.py $(ARGS)

docs: $(INSTALLED) ## writes the pages that come from the code
	$(BIN)/python docs/generate.py

sql: $(INSTALLED) ## writes the statements of each database from sql/source
	$(BIN)/python -m sql.render

# pyodbc's wheel for Linux stands on unixODBC, which no wheel brings. Where it may be installed, it is.
odbc: $(INSTALLED) ## installs what pyodbc needs of the system, if it is not there
	@$(BIN)/python -c 'import pyodbc' 2>/dev/null || { \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo -n); $$SUDO apt-get update -q \
	  && $$SUDO apt-get install -q -y --no-install-recommends unixodbc libgssapi-krb5-2; } \
	  || { echo 'pyodbc needs unixODBC: install it, or leave odbc out of SQLBEAT_REQUIRE'; exit 1; }

# Tests start it by themselves; the service that Debian's package starts is not theirs.
pgbouncer: ## installs PgBouncer for the tests of poolers, if it is not there
	@test -x /usr/sbin/pgbouncer || command -v pgbouncer >/dev/null || { \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo -n); $$SUDO apt-get update -q \
	  && $$SUDO apt-get install -q -y --no-install-recommends pgbouncer; } \
	  || { echo 'the tests of poolers need PgBouncer: install it, or leave pgbouncer out of SQLBEAT_REQUIRE'; exit 1; }

up: .env ## the example project on SQL Server, in containers
	docker compose up --build --detach
	docker compose ps

down: ## stops these containers; the data stay in their volumes
	docker compose down

mssql: .env ## the contract suite on that SQL Server
	docker compose --profile test run --rm --build tests

.env:
	umask 077 && $(PYTHON) infra/compose/passwords.py > .env.part && mv .env.part .env

clean: ## removes what these targets have made here
	rm -rf $(VENV) .venv-demo build dist .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# Python's own pip may be older than 25.1, the first that knows --group.
$(INSTALLED): pyproject.toml constraints-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	$(PIP) install --quiet $(LOCK:%=--constraint %) --group dev --editable '.[crypto,mssql,mysql,postgresql,redis,solar]'
# It runs with the newest Celery, which its metadata refuses.
	$(PIP) install --quiet --no-deps 'celery-batches~=0.11.0'
	touch $@

.venv-demo/.installed: pyproject.toml
	@echo "installing celery-sqlbeat into .venv-demo, once"
	@$(PYTHON) -m venv .venv-demo
	@.venv-demo/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

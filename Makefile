# Every command that README.md, .ci/run and the CI workflow name is here and only here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: test lint demo chaos bench simulate mutants docs up down mssql odbc pgbouncer clean

# By files, in their order: the long ones with real processes come before the short ones. They wait a lot, hence two more than cores.
test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses $$(( $$($(BIN)/python -c 'import os; print(os.cpu_count())') + 2 )) \
		--dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
# SQLite itself reads each of its statements in the tests; sqlfluff does not know all of its grammar.
	$(BIN)/sqlfluff lint --dialect sqlite --ignore parsing sql/sqlite
	$(BIN)/sqlfluff lint --dialect postgres sql/postgresql
	$(BIN)/sqlfluff lint --dialect tsql sql/mssql infra/compose

# What the demonstration needs is quickly installed; where everything is installed already, that will do.
DEMO := $(if $(wildcard $(INSTALLED)),$(VENV),.venv-demo)

demo: $(DEMO)/.installed
	@$(DEMO)/bin/celery sqlbeat demo $(ARGS)

# A long storm over real processes: make chaos MINUTES=60 DATABASE=sqlite BROKER=rabbitmq SEED=7
chaos: $(INSTALLED)
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) $(if $(DATABASE),--database $(DATABASE)) \
		$(if $(BROKER),--broker $(BROKER)) $(if $(SEED),--seed $(SEED))

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

simulate: $(INSTALLED)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS)) $(if $(ONLY),--only $(ONLY))

mutants: $(INSTALLED)
	$(BIN)/python -m tests.simulation.mutate $(if $(SEED),--seed $(SEED)) $(if $(NAME),--name '$(NAME)')

docs: $(INSTALLED)
	$(BIN)/python docs/generate.py

# pyodbc's wheel for Linux stands on unixODBC, which no wheel brings. Where it may be installed, it is.
odbc: $(INSTALLED)
	@$(BIN)/python -c 'import pyodbc' 2>/dev/null || { \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo -n); $$SUDO apt-get update -q \
	  && $$SUDO apt-get install -q -y --no-install-recommends unixodbc libgssapi-krb5-2; } \
	  || { echo 'pyodbc needs unixODBC: install it, or leave odbc out of SQLBEAT_REQUIRE'; exit 1; }

# Tests start it by themselves; the service that Debian's package starts is not theirs.
pgbouncer:
	@test -x /usr/sbin/pgbouncer || command -v pgbouncer >/dev/null || { \
	  SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo -n); $$SUDO apt-get update -q \
	  && $$SUDO apt-get install -q -y --no-install-recommends pgbouncer; } \
	  || { echo 'the tests of poolers need PgBouncer: install it, or leave pgbouncer out of SQLBEAT_REQUIRE'; exit 1; }

# The example project on SQL Server, in containers; down leaves the data in their volumes.
up: .env
	docker compose up --build --detach
	docker compose ps

down:
	docker compose down

# The contract suite on that SQL Server.
mssql: .env
	docker compose --profile test run --rm --build tests

.env:
	umask 077 && $(PYTHON) infra/compose/passwords.py > .env.part && mv .env.part .env

clean:
	rm -rf $(VENV) .venv-demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,mssql,postgresql,solar]'
# It runs with the newest Celery, which its metadata refuses.
	$(BIN)/python -m pip install --quiet --no-deps 'celery-batches~=0.11.0'
	touch $@

.venv-demo/.installed: pyproject.toml
	@echo "installing celery-sqlbeat into .venv-demo, once"
	@$(PYTHON) -m venv .venv-demo
	@.venv-demo/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

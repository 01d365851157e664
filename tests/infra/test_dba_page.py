"""docs/dba.md names what is there: tables, indexes, columns, settings; and its sums are right."""

import re
from pathlib import Path

import click
import pytest

from celery_sqlbeat.config.settings import NAMES, Settings
from celery_sqlbeat.store.sql.dialects.mssql_driver import DEFAULTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/dba.md").read_text()
MIGRATIONS = "\n".join(path.read_text() for path in sorted((ROOT / "sql/mssql/migrations").glob("*.sql")))
SCRIPTS = MIGRATIONS + (ROOT / "sql/mssql/statements/schema.sql").read_text()
TABLES = set(re.findall(r"CREATE TABLE dbo\.(\w+)", SCRIPTS))
INDEXES = set(re.findall(r"CREATE (?:UNIQUE )?NONCLUSTERED INDEX (\w+)", MIGRATIONS))
COLUMNS = set(
    re.findall(
        r"^\s{4,}(\w+) (?:n?varchar|bigint|int|bit|datetime2|uniqueidentifier|float|tinyint|AS )",
        MIGRATIONS,
        re.MULTILINE,
    )
)
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


def first_column(section: str) -> set[str]:
    """Return what stands in the first column of the tables of a section, in backticks."""
    body = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(?:dbo\.)?(\w+)` \|", body, re.MULTILINE))


def test_every_table_is_described_and_no_other() -> None:
    assert first_column("Tables") == TABLES


def test_every_index_is_described_and_no_other() -> None:
    assert first_column("Indexes") == INDEXES


@pytest.mark.parametrize("index", sorted(INDEXES))
def test_an_index_is_described_with_its_columns(index: str) -> None:
    made = re.search(rf"INDEX {index} ON dbo\.(\w+) \(([\w, ]+)\)", MIGRATIONS)
    assert made
    assert f"| `{index}` | `{made[1]}` ({made[2]})" in PAGE


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: " ".join(query.split())[:40])
def test_a_query_names_tables_and_columns_that_exist(query: str) -> None:
    assert set(re.findall(r"\bdbo\.(\w+)", query)) <= TABLES
    if "dbo." in query and "sys." not in query:
        aliases = set(re.findall(r"\bAS (\w+)", query)) | {"Jobs", "JobRuns", "Nodes", "StoreInfo"}
        words = set(re.findall(r"\b[A-Z][a-z]\w*", re.sub(r"N?'[^']*'", "", query)))
        assert words - aliases - TABLES <= COLUMNS


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: " ".join(query.split())[:40])
def test_a_query_is_t_sql(query: str) -> None:
    import sqlfluff

    sqlfluff.parse(query, dialect="tsql")  # raises what cannot be parsed


def test_commands_that_are_named_exist() -> None:
    from celery_sqlbeat.cli import sqlbeat

    named = re.findall(r"`celery -A app sqlbeat (\w+)((?: --[\w-]+)*)`", PAGE)
    assert ("init", " --recovered") in named and ("init", " --sql") in named
    for name, options in named:
        command = sqlbeat.get_command(click.Context(sqlbeat), name)
        assert command is not None, name
        assert set(options.split()) <= {option for parameter in command.params for option in parameter.opts}


def test_settings_that_are_named_exist() -> None:
    named = set(re.findall(r"`(sqlbeat_\w+)", PAGE)) - {"sqlbeat_runner", "sqlbeat_reader"}
    assert named and named <= set(NAMES)


def test_defaults_that_are_named_hold() -> None:
    settings, text = Settings(), " ".join(PAGE.split())
    assert f"`sqlbeat_batch_size` ({settings.batch_size})" in text
    assert f"`sqlbeat_history_days` ({settings.history_days:g})" in text
    assert f"half of the statement time-out ({settings.statement_timeout / 2:g} s by default)" in text
    assert f"under the name `{DEFAULTS['APP']}`" in text


def steps() -> dict[str, tuple[int, int]]:
    """Return the rows that each step writes in `Jobs` and `JobRuns`, as the page says."""
    rows = re.findall(r"^\| (\w+)(?:, each)? \| (?:beat|worker) \| (\d) \| (\d) \|$", PAGE, re.MULTILINE)
    return {step: (int(jobs), int(runs)) for step, jobs, runs in rows}


def test_the_sums_are_right() -> None:
    found = {name: rows for name, rows in steps().items() if name != "heartbeat"}
    jobs, runs = (sum(column) for column in zip(*found.values(), strict=True))
    assert f"writes {jobs} rows of `Jobs` and {runs} of `JobRuns`" in PAGE
    loads = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) KB/s \| ([\d.]+) GB \|$", PAGE, re.MULTILINE)
    assert len(loads) == 3
    for fires, rows, log, history in loads:
        assert int(rows) == int(fires) * (jobs + runs)
        assert int(log) == int(fires) * 4
        assert float(history) == pytest.approx(int(fires) * 7 * 86400 * 0.6 / 1e6, rel=0.15)


def test_no_statement_of_ours_comes_near_lock_escalation() -> None:
    most = 1000  # as the setting says, which a value above it does not get past
    with pytest.raises(ValueError, match="1000"):
        _batch_size(most + 1)
    assert _batch_size(most) == most
    assert 2 * most < 5000 and "2,000" in PAGE


def _batch_size(value: int) -> int:
    from celery_sqlbeat.config.settings import read_settings
    from celery_sqlbeat.errors import SettingError

    try:
        return read_settings({"sqlbeat_batch_size": value}, {}).batch_size
    except SettingError as error:
        raise ValueError(str(error)) from error

"""The T-SQL files say the same as those of PostgreSQL, and obey the rules of SQL Server."""

import re
from pathlib import Path

import pytest

from celery_sqlbeat.store.sql.dialects.mssql import Mssql
from celery_sqlbeat.store.sql.dialects.mssql_text import CLOCK, split_batches
from celery_sqlbeat.store.sql.migrations import creation_script, migrations
from celery_sqlbeat.store.sql.session import Block, load, sql_folder
from sql.render import DATABASES

BLOCKS = load("mssql")
OTHER = load("postgresql")
BATCHES = sorted(name for name, block in BLOCKS.items() if block.rows.names)
TYPES = DATABASES["mssql"]
A_TYPE = (
    "bigint|bit|datetime2|double|float|float8|int|integer|nvarchar|smallint|text|timestamptz|tinyint|uniqueidentifier"
    "|uuid|varchar"
)


def code(block: Block) -> str:
    """Return the block without its comments and its texts."""
    return re.sub(r"'[^']*'", "''", re.sub(r"--.*", "", block.text))


def declared(block: Block) -> set[str]:
    """Return the variables that the block makes for itself."""
    return set(re.findall(rf"(?:DECLARE|,)\s+@(\w+) (?:{A_TYPE}|TABLE)\b", code(block)))


def test_a_batch_is_read_as_its_header_says() -> None:
    for name in BATCHES:
        block = BLOCKS[name]
        types = map(TYPES.type, block.rows.kinds)
        written = list(zip(block.rows.names, types, map(str, range(len(block.rows.names))), strict=True))
        found = re.findall(r"OPENJSON\(@rows\) WITH \((.*?)\) AS \w+$", block.text, re.DOTALL | re.MULTILINE)
        assert found, name
        for one in found:
            read = re.findall(r"(\w+) ([\w()]+) '\$\[(\d+)\]'", one)
            assert read == written or (set(read) < set(written) and len(found) > 1), name


def test_every_variable_is_declared_once() -> None:
    for name in sorted(BLOCKS):
        block = BLOCKS[name]
        used = set(re.findall(r"(?<!@)@(\w+)", code(block)))
        options = {"Resource", "LockMode", "LockOwner", "LockTimeout"}  # of sp_getapplock
        assert used - options == declared(block) - options, name
        assert ("rows" in used) == bool(block.rows.names), name
        assert declared(block) >= set(block.parameters.names), name
        variables = re.findall(r"DECLARE @(\w+)", block.text)
        assert len(variables) == len(set(variables)), name


def test_a_block_keeps_to_what_triggers_plans_and_clusters_allow() -> None:
    for name in sorted(BLOCKS):
        text = code(BLOCKS[name])
        for word in (
            "MERGE",
            "WAITFOR",
            "ALTER DATABASE",
            "CREATE OR ALTER",
            "PERCENT",
            "NOLOCK",
            "GETUTCDATE",
            "GETDATE",
        ):
            assert not re.search(rf"\b{word}\b", text), word
        # A bare OUTPUT is refused by a table with a trigger (error 334).
        assert len(re.findall(r"\bOUTPUT\b", text)) == len(re.findall(r"\bOUTPUT\b[^;]*?\bINTO\s+@", text)), name
        assert not re.search(
            r"\b(?:FROM|JOIN|INTO|UPDATE) (?:Jobs|JobRuns|Nodes|Changes|Releases|StoreInfo)\b", text
        ), name


def test_a_block_looks_at_the_clock_once_and_first() -> None:
    for name in sorted(BLOCKS):
        text = BLOCKS[name].text
        assert text.count(CLOCK) == text.count("@now datetime2(6) = " + CLOCK) <= 1, name
        if CLOCK in text:
            assert re.match(r"(DECLARE @[^;]* = \?;\n)?DECLARE @now", text), name


def columns(database: str) -> dict[str, list[str]]:
    """Return the columns of each table in order, without keys and columns of one database alone."""
    found: dict[str, list[str]] = {}
    for line in re.sub(r"--.*", "", migrations(database)[0].text).splitlines():
        if table := re.search(r"CREATE TABLE (?:dbo\.)?(\w+)", line):
            found[table[1]] = []
        elif (column := re.match(rf"\s+(\w+) (?:{A_TYPE})\b", line)) and "GENERATED" not in line:
            list(found.values())[-1].append(column[1])
    return {table: [name for name in names if name != "Seq"] for table, names in found.items()}


def test_the_tables_have_the_same_columns() -> None:
    assert columns("mssql") == columns("postgresql")
    assert "DueAt" in columns("mssql")["JobRuns"]


def test_the_legal_transitions_are_written_alike() -> None:
    ours, theirs = (
        re.findall(r"State = '(\w+)' AND PriorState IN \((.*?)\)", migrations(database)[0].text)
        for database in ("mssql", "postgresql")
    )
    assert ours == theirs != []


def test_the_schema_may_be_created_twice() -> None:
    for batch in split_batches(migrations("mssql")[0].text):
        text = re.sub(r"^--.*\n", "", batch, flags=re.MULTILINE).strip()
        assert text.startswith(("SET ", "IF OBJECT_ID(", "IF NOT EXISTS (")) or "WHERE NOT EXISTS" in text, text[:80]


def test_the_creation_script_needs_no_parameter() -> None:
    for batch in split_batches(creation_script("mssql")):
        assert set(re.findall(r"@(\w+)", batch)) <= {"now"}


@pytest.mark.parametrize("script", ["create", "seed", "grants", "cleanup"])
@pytest.mark.parametrize("database", ["mssql", "postgresql", "sqlite"])
def test_every_database_has_its_scripts(database: str, script: str) -> None:
    text = (sql_folder(database) / f"{script}.sql").read_text(encoding="utf-8")
    assert text.startswith("-- ") and text.endswith("\n")


@pytest.mark.parametrize("path", sorted(sql_folder("mssql").glob("*.sql")), ids=lambda path: path.name)
def test_a_script_runs_in_sqlcmd_and_in_ssms(path: Path) -> None:
    """No variables or commands of sqlcmd, and each batch ends.

    What writes rows needs what sqlcmd leaves off.
    """
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\$\(|^:|\bUSE\b", text, re.MULTILINE)
    assert text.endswith("\nGO\n")
    assert "XACT_ABORT ON" in split_batches(text)[0]
    if re.search(r"^(INSERT|UPDATE|DELETE|MERGE)\b", text, re.MULTILINE):
        assert "QUOTED_IDENTIFIER ON" in split_batches(text)[0]


# What Azure SQL Database refuses to compile, wherever it stands in a batch: these know a server and
# its logins.
OF_A_SERVER = r"\b(SUSER_ID|SUSER_SID|IS_SRVROLEMEMBER|sys\.server_principals|sys\.syslogins)\b"


def test_what_a_server_alone_knows_is_asked_in_a_text_of_its_own() -> None:
    for path in sorted(sql_folder("mssql").rglob("*.sql")):
        text = re.sub(r"--.*", "", path.read_text(encoding="utf-8"))
        assert re.findall(OF_A_SERVER, re.sub(r"N'[^']*'", "", text)) == [], path


@pytest.mark.parametrize("database", ["mssql", "postgresql", "sqlite"])
def test_cleaning_up_and_granting_forget_no_table(database: str) -> None:
    tables = {*re.findall(r"CREATE TABLE (?:dbo\.)?(\w+)", migrations(database)[0].text), "SchemaMigrations"}
    cleanup = (sql_folder(database) / "cleanup.sql").read_text(encoding="utf-8")
    grants = (sql_folder(database) / "grants.sql").read_text(encoding="utf-8")
    for table in tables:
        assert re.search(rf"^DROP TABLE IF EXISTS\b.*\b{table}\b", cleanup, re.MULTILINE)
        assert database == "sqlite" or re.search(rf"^GRANT SELECT.*\b{table}\b", grants, re.MULTILINE)


def test_a_read_that_passes_locked_rows_by_takes_locks_itself() -> None:
    """Where READ_COMMITTED_SNAPSHOT is on, it would read old versions instead, and pass by none."""
    hints = [hint for block in BLOCKS.values() for hint in re.findall(r"WITH \((.*\bREADPAST\b.*?)\)", code(block))]
    assert hints
    assert all("READCOMMITTEDLOCK" in hint for hint in hints)


def indexes() -> dict[str, str]:
    """Return the filter of each index that the migrations create, "" where it has none."""
    found = {}
    for migration in migrations("mssql"):
        text = re.sub(r"--.*", "", migration.text)
        for index in re.finditer(r"CREATE (?:UNIQUE )?NONCLUSTERED INDEX (\w+) ON([^;]*);", text):
            found[index[1]] = " ".join(index[2].partition("WHERE")[2].split())
        found |= dict.fromkeys(re.findall(r"CONSTRAINT (\w+) (?:PRIMARY KEY|UNIQUE)", text), "")
    return found


def test_a_hint_names_an_index_whose_filter_the_statement_repeats() -> None:
    """Otherwise there is no plan, and the statement fails (error 8622)."""
    filters, seen = indexes(), set()
    for name, block in BLOCKS.items():
        for statement in re.sub(r"--.*", "", block.text).split(";"):
            for alias, index in re.findall(r"dbo\.\w+ AS (\w+) WITH \(INDEX \((\w+)\)", statement):
                seen.add(index)
                for term in filter(None, filters[index].split(" AND ")):
                    assert f"{alias}.{term}" in statement, f"{name}: {index} needs {alias}.{term}"
    assert {"Jobs_Due", "Jobs_Leased", "JobRuns_Outbox", "JobRuns_Held", "JobRuns_Dead"} <= seen
    assert all(
        re.search(rf"\b{index}\b", (sql_folder("mssql").parents[1] / "docs/dba.md").read_text()) for index in seen
    )


def test_a_statement_with_a_filtered_hint_is_never_parameterized_by_the_server() -> None:
    """Forced parameterization would replace the literals of the filter.

    It leaves alone what names a variable.
    """
    for block in BLOCKS.values():
        for statement in re.sub(r"--.*", "", block.text).split(";"):
            if "INDEX (" in statement:
                assert re.search(r"(?<!@)@\w+", statement)


@pytest.mark.parametrize("name", sorted(Mssql.at_once))
def test_several_blocks_at_once_are_one_batch_that_commits_before_it_answers(name: str) -> None:
    text = BLOCKS[name].text
    assert text.count("BEGIN TRANSACTION;") == text.count("COMMIT TRANSACTION;")
    before, _, answer = text.rpartition("COMMIT TRANSACTION;")
    assert re.fullmatch(r"SELECT\s+[\w,\s]+\sFROM @\w+", answer.strip())
    assert "dbo." not in before.partition("BEGIN TRANSACTION;")[0]
    assert text.count(CLOCK) == 1


def test_an_end_at_once_keeps_every_condition_of_its_steps() -> None:
    for step in ("release_jobs", "close_runs"):
        for condition in re.findall(r"^WHERE.*?^OPTION", BLOCKS[step].text, re.DOTALL | re.MULTILINE):
            assert condition in BLOCKS["finish_at_once"].text

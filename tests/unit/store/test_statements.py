"""The SQL files: how blocks are read, and that every database has the same ones."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.sql import session
from celery_sqlbeat.store.sql.migrations import migrations
from celery_sqlbeat.store.sql.session import Block, blocks_in, load, sql_folder

REFERENCE = "sqlite"
DATABASES = sorted(
    folder.name for folder in sql_folder(REFERENCE).parent.iterdir() if (folder / "statements" / "beat.sql").is_file()
)
# Columns that one database makes by itself, for the sake of an index or of a cluster key.
COMPUTED = {"jobs": {"leased", "seq", "dueat"}, "jobruns": {"dead", "seq"}, "releases": {"seq"}}
ONLY_THERE = {"read_migrations_table", "lock_releases"}  # what they give is not read, only whether
UNUSED = {"purge_runs": {"after_id"}}  # where the index of one database needs no such bound
OTHERS = [name for name in DATABASES if name != REFERENCE]


def test_a_block_has_its_name_its_rows_and_its_text() -> None:
    (block,) = blocks_in("-- name: mark\n-- rows: run_id uuid, due_at timestamptz\n-- why\nSELECT 1;\n").values()
    assert block == Block("mark", "SELECT 1", ("run_id", "due_at"), ("uuid", "timestamptz"), (1,))


def test_a_type_may_hold_commas() -> None:
    (block,) = blocks_in("-- name: a\n-- rows: b decimal(10, 2), c text\nSELECT 1").values()
    assert (block.columns, block.types) == (("b", "c"), ("decimal(10, 2)", "text"))


def test_a_file_holds_several_blocks() -> None:
    assert list(blocks_in("-- head\n\n-- name: a\nSELECT 1;\n\n-- name: b\nSELECT 2;\n")) == ["a", "b"]


def test_two_blocks_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "statements").mkdir()
    for name in ("one", "two"):
        (tmp_path / "statements" / f"{name}.sql").write_text("-- name: same\nSELECT 1;\n")
    monkeypatch.setattr(session, "sql_folder", lambda _: tmp_path)
    with pytest.raises(StoreError, match="two SQL blocks for elsewhere are named same"):
        load.__wrapped__("elsewhere")


def test_missing_files_say_what_to_do() -> None:
    with pytest.raises(StoreError, match="install celery-sqlbeat again"):
        sql_folder("nowhere")


def test_two_databases_at_least_are_compared() -> None:
    assert {"sqlite", "postgresql"} <= set(DATABASES)


@pytest.mark.parametrize("database", OTHERS)
def test_every_database_has_the_same_blocks(database: str) -> None:
    """`migration_lock` is not needed where beginning to write keeps everybody else out."""
    assert set(load(database)) - {"migration_lock"} == set(load(REFERENCE)) - {"migration_lock"}


@pytest.mark.parametrize("database", OTHERS)
def test_every_block_takes_the_same_rows(database: str) -> None:
    assert _differing(database, lambda block: block.columns) == {}


@pytest.mark.parametrize("database", OTHERS)
def test_every_block_takes_the_same_scalars(database: str) -> None:
    assert _differing(database, _scalars) == {}


@pytest.mark.parametrize("database", OTHERS)
def test_every_block_gives_the_same_columns(database: str) -> None:
    assert _differing(database, lambda block: block.name in ONLY_THERE or _result(block.text)) == {}


@pytest.mark.parametrize("database", OTHERS)
def test_every_database_has_the_same_tables_and_columns(database: str) -> None:
    assert _tables(database) == _tables(REFERENCE)


@pytest.mark.parametrize("database", OTHERS)
def test_every_database_has_the_same_migrations(database: str) -> None:
    assert [one[:2] for one in migrations(database)] == [one[:2] for one in migrations(REFERENCE)]


@pytest.mark.parametrize("database", DATABASES)
def test_every_block_that_takes_rows_uses_them(database: str) -> None:
    for block in load(database).values():
        assert bool(block.columns) == (":rows" in block.text or "@rows" in block.text), block.name


def _differing(database: str, fact: Callable[[Block], object]) -> Mapping[str, object]:
    theirs, ours = load(database), load(REFERENCE)
    return {
        name: (fact(theirs[name]), fact(ours[name]))
        for name in theirs.keys() & ours.keys()
        if fact(theirs[name]) != fact(ours[name])
    }


def _scalars(block: Block) -> set[str]:
    """Return the parameters.

    The clock is a parameter on SQLite only, a variable of the batch on SQL Server.
    """
    plain = re.sub(r"'[^']*'", "", re.sub(r"--.*", "", block.text))
    names = set(re.findall(r"(?<![:\w@])[:@]([a-z_]+)", plain))
    declared = {
        name
        for statement in re.findall(r"\bDECLARE\b.*?;", plain, re.DOTALL)
        for name in re.findall(r"(?:DECLARE|,)\s*@(\w+)\s+\w", _outermost(statement))
    }
    return names - {"rows", "now"} - declared - UNUSED.get(block.name, set())


def _result(text: str) -> list[str]:
    """Return the names of the result's columns, lower case; empty where a block only writes."""
    text = re.sub(r"\bAS LastAttempt\b", "AS max", text)
    text = re.sub(r"--.*", "", text)
    depth_zero = _outermost(text)
    returning = re.search(r"\bRETURNING\b(.*)$", depth_zero, re.DOTALL)
    if returning:
        return _names(returning[1])
    selects = list(re.finditer(r"(?:^|[;\n)])\s*SELECT\b(.*?)(?=\bFROM\b|\bWHERE\b|;|$)", depth_zero, re.DOTALL))
    writes = re.search(r"^\s*(?:UPDATE|INSERT|DELETE|MERGE)\b", depth_zero, re.MULTILINE)
    if not selects or (writes and ";" not in depth_zero):
        return []
    last = selects[-1][1]
    if re.search(r"^\s*@\w+ =", last) or (
        writes and not re.search(r";\s*SELECT\b[^;]*$", depth_zero.rstrip().rstrip(";"))
    ):
        return []
    return _names(re.sub(r"^\s*TOP\s*(\([^)]*\)|\(\)|\S+)?", "", last))


def _outermost(text: str) -> str:
    """Return the text with what stands in parentheses taken out."""
    kept, depth = [], 0
    for character in text:
        depth -= character == ")"
        if depth == 0 or (character in "()" and depth == 0):
            kept.append(character)
        depth += character == "("
    return "".join(kept)


def _names(columns: str) -> list[str]:
    found = []
    for column in columns.split(","):
        words = re.findall(r"[\w*]+", column)
        if words:
            found.append(words[-1].lower())
    return found


def _tables(database: str) -> dict[str, set[str]]:
    """Return the tables that the migrations make, with their columns.

    What only one database needs is left out.
    """
    tables: dict[str, set[str]] = {}
    for migration in migrations(database):
        text = re.sub(r"--.*", "", migration.text)
        for match in re.finditer(r"CREATE TABLE (?:dbo\.)?(\w+) ?\(", text):
            body, depth = "", 1
            for character in text[match.end() :]:
                depth += (character == "(") - (character == ")")
                if depth == 0:
                    break
                body += character
            names = {part.split()[0].lower() for part in _outermost(body).split(",") if part.split()}
            tables[match[1].lower()] = (
                names - COMPUTED.get(match[1].lower(), set()) - {"constraint", "primary", "check", "unique", "index"}
            )
        for table, column in re.findall(r"ALTER TABLE (?:dbo\.)?(\w+) ADD (?:COLUMN )?(?!CONSTRAINT)(\w+)", text):
            tables[table.lower()].add(column.lower())
        for made, table in re.findall(r"ALTER TABLE (\w+) RENAME TO (\w+)", text):
            tables[table.lower()] = tables.pop(made.lower())
    return tables

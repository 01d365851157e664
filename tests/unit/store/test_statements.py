"""The SQL files: how blocks are read, and that every database has the same ones."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.sql import session
from celery_sqlbeat.store.sql.migrations import migrations
from celery_sqlbeat.store.sql.session import Block, Columns, blocks_in, load, load_with_clock, sql_folder
from sql import render
from sql.databases import spoken

REFERENCE = "sqlite"
DATABASES = sorted(
    folder.name for folder in sql_folder(REFERENCE).parent.iterdir() if (folder / "statements" / "beat.sql").is_file()
)
# Columns that one database makes by itself, for the sake of an index or of a cluster key.
COMPUTED = {
    "idempotencykeys": {"seq"},
    "jobs": {"leased", "seq", "dueat", "claimableat", "needsattention", "oneoffat"},
    "jobruns": {"dead", "seq", "isunended", "statebeside"},
    "releases": {"seq"},
}
ONLY_THERE = {"read_migrations_table", "lock_releases", "migration_lock"}  # what they give is not read, only whether
UNUSED = {"purge_runs": {("after_id", "word(36)")}}  # where the index of one database needs no such bound
# Which steps of several have no block of their own where one block does them all.
ONE_FOR_ALL: dict[str, dict[str, tuple[str, ...]]] = {
    "postgresql": {
        "start_at_once": ("start_jobs", "start_runs"),
        "release_at_once": ("lock_claims", "release_jobs", "close_runs"),
    },
    "mssql": {"start_at_once": ("start_jobs", "start_runs")},
}
OTHERS = [name for name in DATABASES if name != REFERENCE]


def test_a_block_has_its_name_what_its_header_declares_and_its_text() -> None:
    header = "-- name: mark\n-- rows: $1 run_id id,\n--   $2 due_at instant\n-- returns: Fence bigint\n-- why\n"
    (block,) = blocks_in(f"{header}SELECT 1\n-- which\nFROM p;\n").values()
    rows = Columns(("run_id", "due_at"), ("id", "instant"), (1,))
    assert block == Block("mark", "SELECT 1\n-- which\nFROM p", rows=rows, returns=Columns(("Fence",), ("bigint",)))


def test_a_test_may_set_the_clock() -> None:
    usual = load("postgresql")["read_clock"]
    changed = load_with_clock("postgresql", "statement_timestamp()", "(SELECT At FROM TestClock)")["read_clock"]
    assert (usual.text, changed.text) == (
        "SELECT statement_timestamp() AS Now",
        "SELECT (SELECT At FROM TestClock) AS Now",
    )


@pytest.mark.parametrize("database", sorted(render.DATABASES))
def test_what_runs_is_what_the_source_says(database: str) -> None:
    made = render.files(database)
    assert {path for path in made if path.read_text(encoding="utf-8") != made[path]} == set(), "run make sql"
    assert set((render.HERE / database / "statements").glob("*.sql")) == made.keys() - {
        render.HERE / database / "create.sql"
    }


def test_each_name_in_the_list_of_kinds_is_used() -> None:
    blocks = [block for database in render.DATABASES for block in load(database).values()]
    used = {
        name for block in blocks for columns in (block.parameters, block.rows, block.returns) for name in columns[0]
    }
    assert used == render.kinds().keys()


def test_a_phrase_may_hold_another_one_and_keeps_its_place() -> None:
    phrases = {"later": "greatest({0}, {1})", "after": "{0} +\n    {1}"}
    text = "SELECT\n    after(later(:now, r.Planned), count(r.Delay)) AS At"
    assert spoken(text, phrases) == "SELECT\n    greatest(:now, r.Planned) +\n        count(r.Delay) AS At"
    with pytest.raises(ValueError, match="does not end"):
        spoken("after(:now, 1", phrases)


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
def test_every_database_has_the_same_blocks_or_one_for_several(database: str) -> None:
    """`migration_lock` is not needed where beginning to write keeps everybody else out."""
    theirs, ours = set(load(database)) - {"migration_lock"}, set(load(REFERENCE))
    assert {name for name in theirs - ours if not name.endswith("_at_once")} == set()
    assert ours - theirs == {step for name in theirs - ours for step in ONE_FOR_ALL[database].get(name, ())}


@pytest.mark.parametrize("database", OTHERS)
def test_every_block_takes_the_same_rows(database: str) -> None:
    assert _differing(database, lambda block: block.rows) == {}


@pytest.mark.parametrize("database", OTHERS)
def test_every_block_takes_the_same_parameters(database: str) -> None:
    """The clock is a parameter on SQLite only."""
    assert _differing(database, lambda block: _parameters(block) - UNUSED.get(block.name, set())) == {}


@pytest.mark.parametrize("database", OTHERS)
def test_every_block_gives_the_same_columns(database: str) -> None:
    assert _differing(database, lambda block: block.returns) == {}


@pytest.mark.parametrize("database", DATABASES)
def test_a_header_declares_what_a_block_gives(database: str) -> None:
    written = {name: _result(block.text) for name, block in load(database).items() if name not in ONLY_THERE}
    declared = {name: [column.lower() for column in block.returns.names] for name, block in load(database).items()}
    assert {name: found for name, found in written.items() if found != declared[name]} == {}


@pytest.mark.parametrize("database", OTHERS)
def test_every_database_has_the_same_tables_and_columns(database: str) -> None:
    assert _tables(database) == _tables(REFERENCE)


@pytest.mark.parametrize("database", OTHERS)
def test_every_database_has_the_same_migrations(database: str) -> None:
    assert [one[:2] for one in migrations(database)] == [one[:2] for one in migrations(REFERENCE)]


@pytest.mark.parametrize("database", DATABASES)
def test_every_block_that_takes_rows_uses_them(database: str) -> None:
    for block in load(database).values():
        assert bool(block.rows.names) == bool(re.search(r":rows|@rows|unnest\(\s*\$1::", block.text)), block.name


def _differing(database: str, fact: Callable[[Block], object]) -> Mapping[str, object]:
    theirs, ours = load(database), load(REFERENCE)
    return {
        name: (fact(theirs[name]), fact(ours[name]))
        for name in theirs.keys() & ours.keys()
        if fact(theirs[name]) != fact(ours[name])
    }


def _parameters(block: Block) -> set[tuple[str, str]]:
    return set(zip(block.parameters.names, block.parameters.kinds, strict=True)) - {("now", "instant")}


def _result(text: str) -> list[str]:
    """Return the names of the result's columns, lower case; empty where a block only writes."""
    text = re.sub(r"--.*", "", text)
    depth_zero = _outermost(text).partition("UNION ALL")[0]
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
        for match in re.finditer(r"CREATE TABLE (?:IF NOT EXISTS )?(?:dbo\.)?(\w+) ?\(", text):
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
        for table, changes in re.findall(r"ALTER TABLE (?:dbo\.)?(\w+)\s+(ADD\b[^;]*)", text):
            added = re.findall(r"\bADD (?:COLUMN )?(?!CONSTRAINT|INDEX)(\w+)", changes)
            tables[table.lower()] |= {column.lower() for column in added} - COMPUTED.get(table.lower(), set())
        for made, table in re.findall(r"ALTER TABLE (\w+) RENAME TO (\w+)", text):
            tables[table.lower()] = tables.pop(made.lower())
    return tables

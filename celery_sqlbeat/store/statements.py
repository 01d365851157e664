"""Loads the SQL that this package runs: named blocks from `sql/<database>/statements/`, once per process.

A block begins with `-- name:`; `-- rows:` names the columns of its batch, with types where the database needs them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from celery_sqlbeat.errors import StoreError

_NAME = re.compile(r"^-- name: *(\w+) *$", re.MULTILINE)
_ROWS = re.compile(r"^-- rows: *(.+)$", re.MULTILINE)
_INSTANT = re.compile(r"(_at|_for|_slot|_run_time|^first|^last)$")


@dataclass(frozen=True)
class Block:
    """One statement, or on SQL Server one batch."""

    name: str
    text: str
    columns: tuple[str, ...]  # of the batch that stands for `:rows`
    types: tuple[str, ...]
    instants: tuple[int, ...]  # positions of the columns that hold instants


def sql_folder(database: str) -> Path:
    """The folder of a database's SQL: beside the modules in an installed wheel, beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for root in (package / "sql", package.parent / "sql"):
        folder = root / database
        if folder.is_dir():
            return folder
    raise StoreError(f"the SQL files for {database} are missing from this installation: install celery-sqlbeat again")


def blocks_in(text: str) -> dict[str, Block]:
    """The blocks of one file, by name."""
    pieces = _NAME.split(text)[1:]
    return {name: _block(name, body) for name, body in zip(pieces[::2], pieces[1::2], strict=True)}


@cache  # a handful of databases
def load(database: str) -> Mapping[str, Block]:
    """Every block for a database, by name."""
    found: dict[str, Block] = {}
    for path in sorted((sql_folder(database) / "statements").glob("*.sql")):
        for name, block in blocks_in(path.read_text(encoding="utf-8")).items():
            if name in found:
                raise StoreError(f"two SQL blocks for {database} are named {name}")
            found[name] = block
    return found


def _block(name: str, body: str) -> Block:
    columns: list[str] = []
    types: list[str] = []
    header = _ROWS.search(body)
    if header:
        for column in re.split(r",\s*(?![^(]*\))", header.group(1).strip()):
            label, _, kind = column.strip().partition(" ")
            columns.append(label)
            types.append(kind)
    instants = tuple(at for at, column in enumerate(columns) if _INSTANT.search(column))
    text = re.sub(r"^--.*\n", "", body, flags=re.MULTILINE).strip().rstrip(";")
    return Block(name, text, tuple(columns), tuple(types), instants)

"""Load named SQL blocks from `sql/<database>/statements/`, and state what a dialect does with them.

A block begins with `-- name:`; `-- rows:` names the columns of its batch, with types where a
database needs them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.sql.faults import Fault

Row = tuple[Any, ...]
Rows = Sequence[Sequence[Any]]

_INSTANT = re.compile(r"(at|now|scheduledfor|lastslot|nextruntime|lastruntime|ranuntil)$", re.IGNORECASE)


class Session(Protocol):
    """One connection and its transaction. A session is used by one thread at a time."""

    def begin(self) -> None:
        """Begin a transaction that writes."""

    def commit(self) -> None:
        """Commit it. An error here may mean that it did commit."""

    def rollback(self) -> None:
        """Undo it."""

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        """Run a named block and return what it gives; instants are aware datetimes in UTC."""

    def script(self, text: str) -> None:
        """Run a script of several statements, for migrations."""

    def migration_lock(self) -> None:
        """Keep every other migration out until the transaction ends."""

    def close(self) -> None:
        """Close the connection; never raises."""


class Dialect(Protocol):
    """One kind of database at one address."""

    @property
    def name(self) -> str:
        """The database, as `sql/` names its folder."""

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """What the driver raises; every other error is passed on as it is."""

    @property
    def single_statements_commit(self) -> bool:
        """Whether a single statement needs no transaction around it."""

    @property
    def sessions_survive_fork(self) -> bool:
        """Whether a child may forget its parent's sessions; else they are closed before a fork."""

    @property
    def at_once(self) -> frozenset[str]:
        """Blocks that this database has for what others do in several."""

    def connect(self) -> Session:
        """Open a session, or raise the driver's error."""

    def is_spent(self, session: Any) -> bool:
        """Return whether a working session must not be used again."""

    def classify(self, error: BaseException) -> Fault:
        """Say what an error of the driver means."""

    def explain(self, error: BaseException) -> str:
        """Return the error's text in one line, without secrets."""


Clock = Callable[[], datetime]


@lru_cache(maxsize=512)  # a few per block
def instant_positions(names: tuple[str, ...]) -> tuple[int, ...]:
    """Return which of the result's columns hold instants, by their names."""
    return tuple(at for at, name in enumerate(names) if _INSTANT.search(name))


_NAME = re.compile(r"^-- name: *(\w+) *$", re.MULTILINE)
_ROWS = re.compile(r"^-- rows: *(.+)$", re.MULTILINE)
_INSTANT_COLUMN = re.compile(r"(_at|_for|_slot|_run_time|^first|^last)$")


@dataclass(frozen=True)
class Block:
    """One statement, or on SQL Server one batch."""

    name: str
    text: str
    columns: tuple[str, ...]  # of the batch that stands for `:rows`
    types: tuple[str, ...]
    instants: tuple[int, ...]  # positions of the columns that hold instants


def sql_folder(database: str) -> Path:
    """Return the folder of a database's SQL: in an installed package, or beside a checkout."""
    package = Path(__file__).resolve().parents[2]
    for root in (package / "sql", package.parent / "sql"):
        folder = root / database
        if folder.is_dir():
            return folder
    raise StoreError(f"the SQL files for {database} are missing from this installation: install celery-sqlbeat again")


def blocks_in(text: str) -> dict[str, Block]:
    """Read the blocks of one file, by name."""
    pieces = _NAME.split(text)[1:]
    return {name: _block(name, body) for name, body in zip(pieces[::2], pieces[1::2], strict=True)}


@cache  # a handful of databases
def load(database: str) -> Mapping[str, Block]:
    """Every block for a database, by name."""
    blocks: dict[str, Block] = {}
    for path in sorted((sql_folder(database) / "statements").glob("*.sql")):
        for name, block in blocks_in(path.read_text(encoding="utf-8")).items():
            if name in blocks:
                raise StoreError(f"two SQL blocks for {database} are named {name}")
            blocks[name] = block
    return blocks


def _block(name: str, body: str) -> Block:
    columns: list[str] = []
    types: list[str] = []
    header = _ROWS.search(body)
    if header:
        for column in re.split(r",\s*(?![^(]*\))", header.group(1).strip()):
            label, _, kind = column.strip().partition(" ")
            columns.append(label)
            types.append(kind)
    instants = tuple(at for at, column in enumerate(columns) if _INSTANT_COLUMN.search(column))
    text = re.sub(r"^--.*\n", "", body, flags=re.MULTILINE).strip().rstrip(";")
    return Block(name, text, tuple(columns), tuple(types), instants)

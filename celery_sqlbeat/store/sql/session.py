"""Load named SQL blocks from `sql/<database>/statements/`, and state what a dialect does with them.

A block begins with `-- name:`. Its header declares its parameters in the order of their markers,
the columns of its batch and those of its result, with their kinds. Its text is sent as it stands.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.faults import Fault

Row = tuple[Any, ...]
Rows = Sequence[Sequence[Any]]


class Call(NamedTuple):
    """A named block with its values."""

    block: str
    rows: Rows | None = None
    scalars: Mapping[str, Any] = MappingProxyType({})


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

    def fetch_together(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run blocks in their order, in one round trip where the database can.

        After an error none of the later ones is run.
        """

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
    def blocks(self) -> Mapping[str, "Block"]:
        """Its statements, by name."""

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


_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_DECLARED = re.compile(r"^-- (parameters|rows|returns): (.*(?:\n--   .*)*)", re.MULTILINE)


class Columns(NamedTuple):
    """Values that belong together: parameters, the columns of a batch, or those of a result."""

    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    instants: tuple[int, ...] = ()
    """The positions of those that are instants."""


_NONE = Columns()


@dataclass(frozen=True)
class Block:
    """One statement, or on SQL Server one batch."""

    name: str
    text: str
    parameters: Columns = _NONE
    rows: Columns = _NONE
    returns: Columns = _NONE

    @cached_property
    def encoded(self) -> bytes:
        """The text as it is sent."""
        return self.text.encode()


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


@cache  # the clocks of tests
def load_with_clock(database: str, usual: str, clock: str) -> Mapping[str, Block]:
    """Every block for a database, with another clock than the server's."""
    blocks = load(database)
    if clock == usual:
        return blocks
    return {name: replace(block, text=block.text.replace(usual, clock)) for name, block in blocks.items()}


def _block(name: str, body: str) -> Block:
    lines = body.strip().splitlines(keepends=True)
    start = next(at for at, line in enumerate(lines) if not line.startswith("--"))
    declared = {key: _columns(text) for key, text in _DECLARED.findall("".join(lines[:start]))}
    return Block(name, "".join(lines[start:]).removesuffix(";"), **declared)


def _columns(declared: str) -> Columns:
    """Read names and kinds; before a name may stand its marker."""
    pairs = [item.split()[-2:] for item in declared.replace("\n--", " ").split(", ")]
    names, kinds = zip(*pairs, strict=True)
    return Columns(names, kinds, tuple(at for at, kind in enumerate(kinds) if kind == "instant"))

"""Turn a named block into a statement for PostgreSQL, and its instants into UTC.

Markers are numbered; each column of a batch is one array.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache, lru_cache
from typing import Any, NamedTuple

import psycopg
from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzLoader

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.sql.session import Block, Row, Rows, load

# What other databases do in a transaction of several blocks is one statement here, made of those
# blocks, so that each condition is written once. It costs one round trip: no BEGIN, no COMMIT. A
# later block reads what the first returned.

CLOCK = "statement_timestamp()"
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT = re.compile(r"--.*")
_SPECIAL = str.maketrans({"\\": "\\\\", '"': '\\"', "\0": "\ufffd"})  # in an array's text; PostgreSQL has no NUL


class Statement(NamedTuple):
    """A block prepared on the server, outside of the driver's limited cache."""

    text: bytes
    names: tuple[str, ...]
    """Of the values for `$1`, `$2` and so on."""


@lru_cache(maxsize=1024)  # the blocks, times the clocks of tests
def statement(block: Block, clock: str) -> Statement:
    """Return a block as PostgreSQL takes it, with numbered markers."""
    text = " ".join(_COMMENT.sub("", block.text).split())
    if block.columns:
        arrays = ", ".join(f":{name}__rows::{kind}[]" for name, kind in zip(block.columns, block.types, strict=True))
        text = text.replace(":rows", f"SELECT * FROM unnest({arrays})")  # noqa: S608 - names from our own files
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    numbered = _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", text)
    return Statement(numbered.replace(CLOCK, clock).encode(), names)


@lru_cache(maxsize=1024)
def _parts(text: bytes) -> list[bytes | int]:
    """Split a statement's text at its markers; in their places stand their numbers, from 0 on."""
    parts = re.split(rb"\$(\d+)", text)
    return [int(part) - 1 if at % 2 else part for at, part in enumerate(parts)]


def filled(text: bytes, values: Sequence[bytes]) -> bytes:
    """Return a statement with these values in place of its markers."""
    return b"".join(values[part] if isinstance(part, int) else part for part in _parts(text))


def arrays(block: Block, rows: Rows) -> dict[str, str]:
    """Write the rows of a batch as one array for each column."""
    columns = zip(*rows, strict=True)
    return {
        f"{name}__rows": "{" + ",".join(_elements(kind, column)) + "}"
        for name, kind, column in zip(block.columns, block.types, columns, strict=True)
    }


def _elements(kind: str, column: Sequence[Any]) -> list[str]:
    if kind == "timestamptz":
        return ["NULL" if value is None else value.isoformat() for value in column]
    if kind == "text":
        return ["NULL" if value is None else f'"{value.translate(_SPECIAL)}"' for value in column]
    if kind == "smallint":
        return ["NULL" if value is None else str(int(value)) for value in column]
    return ["NULL" if value is None else str(value) for value in column]


START, FINISH, RELEASE = "start_at_once", "finish_at_once", "release_at_once"
AT_ONCE = frozenset({START, FINISH, RELEASE})


@cache
def with_chains() -> Mapping[str, Block]:
    """All blocks for PostgreSQL, with those that are made of several."""
    blocks = load("postgresql")
    return {**blocks, START: _start(blocks), **_finish(blocks)}


def _start(blocks: Mapping[str, Block]) -> Block:
    """Make one statement of start_jobs and of start_runs for what it won.

    Its rows are those of start_jobs.
    """
    jobs, runs = blocks["start_jobs"], blocks["start_runs"]
    text = f"""
        WITH given ({_names(jobs)}) AS (:rows),
        won AS ({_fed(jobs)}),
        {_table(runs)} AS (
            SELECT {_names(jobs, "g.")}, won.Fence, won.Published
            FROM given AS g LEFT JOIN won ON won.RunId = g.run_id
        )
        {_body(runs)}
    """  # noqa: S608 - made of our own blocks
    return Block(START, text, jobs.columns, jobs.types, jobs.instants)


def _finish(blocks: Mapping[str, Block]) -> dict[str, Block]:
    """Make one statement of release_jobs, close_runs and, for other beats, bump_changes.

    Its rows are those of close_runs without `released`, and the job before them. A beat is told of
    the jobs that it has freed as well: an overlapping run that has begun goes on by itself.
    """
    jobs, runs, bump = blocks["release_jobs"], blocks["close_runs"], blocks["bump_changes"]
    kinds = dict(zip((*jobs.columns, *runs.columns), (*jobs.types, *runs.types), strict=True))
    columns = ("job_id", *(name for name in runs.columns if name != "released"))
    of_runs = ", ".join(
        "CASE WHEN g.job_id IN (SELECT Id FROM released) THEN 1 ELSE 0 END" if name == "released" else f"g.{name}"
        for name in runs.columns
    )
    is_news = "EXISTS (SELECT 1 FROM released WHERE Unforeseen = 1) OR EXISTS (SELECT 1 FROM closed WHERE Doomed = 1)"
    rest = f"""
        released AS ({_fed(jobs)}),
        {_table(runs)} AS (SELECT {of_runs} FROM given AS g),
        closed AS ({_body(runs)}),
        bumped AS ({_replaced(bump.text, "VALUES (:namespace, 1)", f"SELECT :namespace, 1 WHERE {is_news}")})
        SELECT RunId FROM closed"""  # noqa: S608 - made of our own blocks
    names = ", ".join(columns)
    # A beat passes by what somebody keeps locked; a worker's outcomes wait for their rows.
    free = _replaced(_body(blocks["lock_claims"]), "SELECT r.RunId", "SELECT p.*")
    texts = {
        FINISH: f"WITH given ({names}) AS (:rows), {rest}",
        RELEASE: f"""
        WITH asked ({names}) AS (:rows),
        given AS MATERIALIZED (WITH p AS (SELECT * FROM asked) {free}),
        {rest}
        UNION ALL
        SELECT Id FROM released""",  # noqa: S608
    }
    types = tuple(kinds[name] for name in columns)
    return {name: Block(name, text, columns, types, ()) for name, text in texts.items()}


def _names(block: Block, prefix: str = "") -> str:
    return ", ".join(prefix + name for name in block.columns)


def _table(block: Block) -> str:
    return f"p ({_names(block)})"


def _fed(block: Block) -> str:
    """Return the block with the rows that all blocks of the statement share."""
    return _replaced(block.text, ":rows", f"SELECT {_names(block)} FROM given")  # noqa: S608 - columns of our own


def _body(block: Block) -> str:
    """Return the block without its rows, which come from another one."""
    _, rows, body = block.text.partition(" AS (:rows)")
    if not rows:
        raise StoreError(f"{block.name} does not begin with its rows any more")
    return body.strip()


def _replaced(text: str, old: str, new: str) -> str:
    before, separator, after = text.partition(old)
    if not separator:
        raise StoreError(f"{old!r} is no part of a block any more")
    return before + new + after


_FIRST, _LAST = datetime.min.replace(tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc)


class EdgeLoader(TimestamptzLoader):
    """Reads an instant beyond Python's calendar, such as infinity, as the calendar's edge."""

    def load(self, data: Buffer) -> datetime:
        """Read one value."""
        try:
            return super().load(data)
        except psycopg.DataError:
            text = bytes(data)
            return _FIRST if text.startswith(b"-") or text.endswith(b"BC") else _LAST


def to_utc(rows: list[Row], places: Sequence[int]) -> list[Row]:
    """Give instants the one UTC of the standard library, in place of the driver's ZoneInfo."""
    if not places:
        return rows
    columns: list[Any] = list(zip(*rows, strict=True))
    for at in places:
        columns[at] = [None if value is None else value.replace(tzinfo=timezone.utc) for value in columns[at]]
    return list(zip(*columns, strict=True))


def from_any_zone(rows: list[Row], places: Sequence[int]) -> list[Row]:
    """Convert instants from the time zone of the role, or of the pooler's last client."""
    columns: list[Any] = list(zip(*rows, strict=True))
    for at in places:
        columns[at] = [None if value is None else value.astimezone(timezone.utc) for value in columns[at]]
    return list(zip(*columns, strict=True))

"""How values get into PostgreSQL and out of it: batches as arrays, instants in UTC."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzLoader

from celery_sqlbeat.store.sql.session import Block, Row, Rows

CLOCK = "statement_timestamp()"
_SPECIAL = str.maketrans({"\\": "\\\\", '"': '\\"', "\0": "\ufffd"})  # in an array's text; PostgreSQL has no NUL


@lru_cache(maxsize=1024)
def _parts(text: bytes) -> list[bytes | int]:
    """Split a statement's text at its markers; in their places stand their numbers, from 0 on."""
    parts = re.split(rb"\$(\d+)", text)
    return [int(part) - 1 if at % 2 else part for at, part in enumerate(parts)]


def filled(text: bytes, values: Sequence[bytes]) -> bytes:
    """Return a statement with these values in place of its markers."""
    return b"".join(values[part] if isinstance(part, int) else part for part in _parts(text))


def values_of(block: Block, rows: Rows | None, scalars: Mapping[str, Any]) -> list[Any]:
    """Return the values for `$1` and so on: an array for each column of a batch, then others."""
    values: list[Any] = [scalars[name] for name in block.parameters.names]
    return values if rows is None else [*arrays(block.rows.kinds, rows), *values]


def arrays(kinds: Sequence[str], rows: Rows) -> list[str]:
    """Write the rows of a batch as one array for each column."""
    columns = zip(*rows, strict=True)
    return ["{" + ",".join(_elements(kind, column)) + "}" for kind, column in zip(kinds, columns, strict=True)]


def _elements(kind: str, column: Sequence[Any]) -> list[str]:
    if kind == "instant":
        return ["NULL" if value is None else value.isoformat() for value in column]
    if kind.startswith(("text", "word")):
        return ["NULL" if value is None else f'"{value.translate(_SPECIAL)}"' for value in column]
    if kind == "flag":
        return ["NULL" if value is None else str(int(value)) for value in column]
    return ["NULL" if value is None else str(value) for value in column]


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

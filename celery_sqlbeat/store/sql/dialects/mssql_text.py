"""How values get into SQL Server: each parameter with its type, a batch as one JSON text."""

import json
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from celery_sqlbeat.store.sql.dialects import mssql_driver
from celery_sqlbeat.store.sql.session import Block, Rows

CLOCK = "SYSUTCDATETIME()"

_SIZES = {
    "flag": (mssql_driver.SQL_BIT, 0, 0),
    "int": (mssql_driver.SQL_INTEGER, 0, 0),
    "bigint": (mssql_driver.SQL_BIGINT, 0, 0),
    "seconds": (mssql_driver.SQL_DOUBLE, 0, 0),
    # As text, the same as in rows: what pyodbc keeps of a bound instant depends on an answer of the
    # server's catalog.
    "instant": (mssql_driver.SQL_VARCHAR, 26, 0),
    "id": (mssql_driver.SQL_VARCHAR, 36, 0),
    "text": (mssql_driver.SQL_WVARCHAR, 0, 0),
    "list": (mssql_driver.SQL_WVARCHAR, 0, 0),
}

_GO = re.compile(r"^[ \t]*GO[ \t]*;?[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)


@lru_cache(maxsize=512)
def sizes_of(block: Block) -> list[tuple[int, int, int]]:
    """Return how the values of a block are bound: its parameters, then the rows as one text."""
    kinds = block.parameters.kinds + (("text",) if block.rows.names else ())
    return [_size(kind) for kind in kinds]


def _size(kind: str) -> tuple[int, int, int]:
    if kind in _SIZES:
        return _SIZES[kind]
    base, _, length = kind.rstrip(")").partition("(")
    return (mssql_driver.SQL_WVARCHAR if base == "text" else mssql_driver.SQL_VARCHAR, int(length), 0)


def rows_as_json(rows: Rows) -> str:
    """Write a batch as a JSON array of arrays.

    Values that SQL Server or Python cannot read are replaced.
    """
    text = _dumps(rows)
    if "\\u0000" in text:
        text = _dumps([[v.replace("\0", "\ufffd") if isinstance(v, str) else v for v in row] for row in rows])
    # A lone surrogate, as in a file name that is no UTF-8, is no character.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _dumps(rows: Any) -> str:
    return json.dumps(rows, default=_instant, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _instant(value: datetime) -> str:
    return _naive(value).isoformat(timespec="microseconds")


def _naive(value: datetime) -> datetime:
    return value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)


def scalar(value: Any) -> Any:
    """Convert a parameter to what the driver takes."""
    if isinstance(value, datetime):
        return _instant(value)
    return rows_as_json(value) if isinstance(value, (list, tuple)) else value


def split_batches(script: str) -> Sequence[str]:
    """Split a script into the batches of sqlcmd and SSMS: between lines that hold only GO."""
    return [batch.strip() for batch in _GO.split(script) if batch.strip()]

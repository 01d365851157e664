"""Turn a block with its values into the text of one packet for MySQL and MariaDB.

A block may hold several statements: the server runs them one after the other, and the last result
is the block's. The rows of a batch are one JSON text.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from celery_sqlbeat.store.sql.dialects.sqlite_values import text_of
from celery_sqlbeat.store.sql.session import Block, Rows

CLOCK = "utc_timestamp(6)"
"""A block reads it once, before any wait for a lock."""


def has_several(block: Block) -> bool:
    """Return whether a block is more than one statement, and so needs a transaction.

    An empty line stands between two of them; none stands after the variables in front.
    """
    return ";\n\n" in block.text


def packet(block: Block, rows: Rows | None, scalars: Mapping[str, Any]) -> str:
    """Return the text of a block with its values."""
    values = {name: literal(scalars[name]) for name in block.parameters.names}
    if rows is not None:
        values["rows"] = literal(rows_as_json(rows))
    return block.text % values


def rows_as_json(rows: Rows) -> str:
    """Write a batch as a JSON array of arrays."""
    return json.dumps(rows, ensure_ascii=False, default=text_of, separators=(",", ":"))


def literal(value: Any) -> str:
    """Write a value as SQL; a list becomes what stands between the parentheses of IN."""
    if value is None:
        return "NULL"
    if isinstance(value, (bool, int)):
        return str(int(value))
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(literal, value)) or "''"  # no name is empty
    text = text_of(value) if isinstance(value, datetime) else str(value)
    return "'" + str(text).replace("\\", "\\\\").replace("'", "''") + "'"

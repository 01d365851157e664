"""Statements that a test runs on a session's own connection, as no code of the package does."""

import itertools
import re
from typing import Any

Row = tuple[Any, ...]


def name_of(session: Any) -> str:
    """Return the database of a session."""
    name = type(session).__name__.removesuffix("Session").lower()
    return "postgresql" if name == "pooled" else name


def by_hand(session: Any, text: str, *values: Any) -> list[Row]:
    """Run a statement on a session's connection and return its rows; `?` stands for a value."""
    kind = name_of(session)
    if kind == "mysql":
        from celery_sqlbeat.store.sql.dialects.mysql_text import literal

        given = iter(values)
        return list(session._run(re.sub(r"\?", lambda _: literal(next(given)), text)))
    if kind == "postgresql":
        numbers = itertools.count(1)
        text = re.sub(r"\?", lambda _: f"${next(numbers)}", text)
        session._send_begin()
    cursor = session._connection.execute(text, values)
    return list(cursor.fetchall()) if cursor.description else []

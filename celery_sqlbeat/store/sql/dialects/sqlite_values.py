"""How values get into SQLite and out of it: instants as text, batches as numbered parameters."""

import itertools
import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from celery_sqlbeat.store.sql.session import Block, Row, Rows


def text_of(instant: datetime | None) -> str | None:
    """Write an instant as SQLite keeps it: UTC text with six digits after the second."""
    if instant is None:
        return None
    if instant.tzinfo is not timezone.utc:
        instant = instant.astimezone(timezone.utc)
    return instant.isoformat(" ", "microseconds")[:26]


def instant_of(text: Any) -> Any:
    """Read the instant in a text; what cannot be read comes back as it is, for the quarantine."""
    if isinstance(text, str):
        try:
            if len(text) == 26:  # as this package writes it
                return datetime.fromisoformat(text + "+00:00")
            instant = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
            return instant.replace(tzinfo=timezone.utc) if instant.tzinfo is None else instant.astimezone(timezone.utc)
        except (ValueError, OverflowError):
            return text
    return text


@lru_cache(maxsize=1024)  # a batch adds few different durations to one instant
def after(instant: str | None, seconds: float | None) -> str | None:
    """Add seconds to an instant, up to the end of the calendar; None of an unreadable one."""
    if seconds is None:
        return None
    start = instant_of(instant)
    if not isinstance(start, datetime):
        return None
    try:
        return text_of(start + timedelta(seconds=seconds))
    except OverflowError:
        return "9999-12-31 23:59:59.999999" if seconds > 0 else "0001-01-01 00:00:00.000000"


@lru_cache(maxsize=512)  # blocks times the usual batch sizes; a text is made again where it is not here
def with_rows(text: str, before: int, width: int, count: int) -> str:
    """Return a text with so many rows in the place of `:rows`.

    Their numbers come after those of the parameters. As JSON they would cost half a statement more.
    """
    numbers = itertools.count(before + 1)
    values = ",".join("(" + ",".join(f"?{next(numbers)}" for _ in range(width)) + ")" for _ in range(count))
    return text.replace(":rows", f"VALUES {values}")


def flat(block: Block, rows: Rows) -> list[Any]:
    """Return the rows' values one after the other, with instants as text."""
    values = list(itertools.chain.from_iterable(rows))
    for at in block.rows.instants:
        column = slice(at, None, len(block.rows.names))
        values[column] = [text_of(value) for value in values[column]]
    return values


def scalar(value: Any) -> Any:
    """Convert one value to what SQLite keeps."""
    if isinstance(value, datetime):
        return text_of(value)
    return json.dumps(value) if isinstance(value, (list, tuple)) else value


def decoded(rows: list[Row], places: tuple[int, ...]) -> list[Row]:
    """Read the instants in these columns of rows."""
    columns: list[Any] = list(zip(*rows, strict=True))
    for at in places:
        known = {text: instant_of(text) for text in set(columns[at])}  # many rows share an instant, or have none
        columns[at] = [known[text] for text in columns[at]]
    return list(zip(*columns, strict=True))


def statements(script: str) -> Iterator[str]:
    """Split a script into statements; SQLite itself says where one ends."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending

"""The rows of JobRuns, read past the store that is judged."""

import contextlib
import sqlite3
from datetime import datetime, timezone
from typing import Any

import psycopg

from tests import mariadb
from tests.chaos.history import Run

_COLUMNS = (
    "RunId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, Reason, Fence, Failures, LostLeases, "
    "FinishedAt"
)


def read(url: str) -> list[Run]:
    """All of them."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
            read = file.execute(f"SELECT {_COLUMNS} FROM JobRuns").fetchall()
        return [
            Run._make((*row[:3], _instant(row[3]), _instant(row[4]), *row[5:12], _instant(row[12]))) for row in read
        ]
    if url.startswith("mysql"):
        with contextlib.closing(mariadb.connect(url)) as connection:
            return [Run._make(row.values()) for row in mariadb.execute(connection, f"SELECT {_COLUMNS} FROM JobRuns")]
    with psycopg.connect(url, options="-c timezone=UTC") as connection:
        stored: list[Any] = connection.execute(f"SELECT {_COLUMNS} FROM JobRuns").fetchall()
        return [Run._make((str(row[0]), *row[1:])) for row in stored]


def _instant(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=timezone.utc)

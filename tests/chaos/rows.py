"""The rows of JobRuns, read past the store that is judged, or by its verbs where it has no SQL."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import redis

from celery_sqlbeat.model import RunRecord
from tests import mariadb
from tests.chaos.history import Run
from tests.support.beats import Shop

_COLUMNS = (
    "RunId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, Reason, Fence, Failures, LostLeases, "
    "FinishedAt"
)


def read(shop: Shop) -> list[Run]:
    """All of them."""
    url = shop.database_url
    if url.startswith("redis"):
        return [_told(record) for record in shop.runs()]
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


def hidden(shop: Shop) -> list[str]:
    """Compare what the verbs of a store without SQL tell with the rows on its server.

    Return what differs. A row that its index has lost would else be judged by nobody.
    """
    if not shop.database_url.startswith("redis"):
        return []
    told = {run.run: run for run in read(shop)}
    kept = {run.run: run for run in _kept(shop.database_url)}
    return [
        f"run {run_id} is told as {told.get(run_id)}, and kept as {kept.get(run_id)}"
        for run_id in sorted(told.keys() | kept.keys())
        if told.get(run_id) != kept.get(run_id)
    ]


def _kept(url: str) -> Iterator[Run]:
    """Read the rows of runs: each is a text, of 16 digits and JSON."""
    with contextlib.closing(redis.Redis.from_url(url)) as client:
        for key in client.scan_iter("sqlbeat:{*}:run:*", count=1000):
            text = client.get(key)
            assert isinstance(text, bytes)
            row = json.loads(text[16:])
            yield Run(
                run=key.decode().rpartition(":")[2],
                job=row["job_name"],
                kind=row["kind"],
                slot=_since_1970(row["scheduled_for"]),
                last_slot=_since_1970(row.get("last_slot")),
                slots=row.get("slot_count", 1),
                attempt=row["attempt"],
                state=row["state"],
                reason=row.get("reason"),
                fence=row["fence"],
                failures=row.get("failures", 0),
                lost_leases=row.get("lost_leases", 0),
                finished=_since_1970(row.get("finished_at")),
            )


def _since_1970(micros: int | None) -> Any:
    return None if micros is None else datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=micros)


def _told(record: RunRecord) -> Run:
    return Run(
        run=record.run_id,
        job=record.job_name,
        kind=record.kind,
        slot=record.scheduled_for,
        last_slot=record.last_slot,
        slots=record.slot_count,
        attempt=record.attempt,
        state=record.state,
        reason=record.reason,
        fence=record.fence,
        failures=record.failures,
        lost_leases=record.lost_leases,
        finished=record.finished_at,
    )


def _instant(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=timezone.utc)

"""What the handle shows: jobs and attempts as frozen records with plain values. Instants are aware datetimes in UTC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from celery_sqlbeat.definition import DEFAULT_MINUTES
from celery_sqlbeat.model import JobRecord, RunRecord


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was read; `version` goes back with a change of it.

    People write rows by hand: a field that cannot be read is shown as it stands, and `quarantine` says what is wrong.
    """

    name: str
    task: str | None
    schedule: str
    """The text of its schedule; `code` where only the code that defines the job can say when it is due."""
    timezone: str | None
    """The job's own time zone; None for that of its policy or of the app."""
    args: Any
    kwargs: Any
    options: Any
    policies: Any
    """The policies of its own row; others come from `sqlbeat_policies`."""
    enabled: bool
    disabled_reason: str | None
    start: datetime | Any | None
    next_run_time: datetime | Any | None
    """The oldest slot that has no outcome yet; None until a beat fills it in."""
    last_run_time: datetime | Any | None
    retry_at: datetime | Any | None
    locked_by: str | None
    """Who holds it, a beat or a worker; None where it is free."""
    locked_at: datetime | Any | None
    lease_ends_at: datetime | Any | None
    fence: int
    run_id: str | None
    """The attempt that holds the job."""
    quarantine: str | None
    """Why it cannot run as it is written."""
    code_owner: str | None
    """The app whose `beat_schedule` defines it; None where the database does."""
    deleted: bool
    """Whether it goes as soon as its run has ended."""
    version: int
    read_at: datetime
    """The server's clock when it was read."""
    id: str

    @property
    def state(self) -> str:
        """What it does just now, in one word."""
        if self.deleted:
            return "deleted"
        if self.locked_by is not None:
            return "held"
        if not self.enabled:
            return "paused"
        if self.quarantine is not None:
            return "set aside"
        return "waits" if self.retry_at is None else "retries"

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON, its state among them."""
        found = _plain(self)
        return {"name": found.pop("name"), "state": self.state, **found}


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt of a slot, or a gap of slots that were skipped."""

    id: str
    """Which is the task's id, too."""
    job_name: str
    kind: str
    scheduled_for: datetime
    last_slot: datetime | None
    """Of a gap: its last slot."""
    slots: int
    """How many slots it stands for: more than one only for a gap."""
    attempt: int
    state: str
    reason: str | None
    claimed_by: str | None
    claimed_at: datetime | None
    published_at: datetime | None
    started_by: str | None
    started_at: datetime | None
    finished_at: datetime | None
    due_at: datetime | None
    """When a beat takes it up, where it waits outside of the schedule: an extra slot, a replay."""
    failures: int
    lost_leases: int
    error: str | None
    traceback: str | None
    fence: int
    created_at: datetime
    job_id: str

    @property
    def seconds(self) -> float | None:
        """How long the task ran; None where it did not, or still does."""
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**_plain(self), "seconds": self.seconds}


def job_of(row: JobRecord) -> Job:
    """The job that a row describes."""
    return Job(
        name=row.job_name,
        task=row.task_name,
        schedule=_schedule(row),
        timezone=row.time_zone,
        args=_value(row.args, []),
        kwargs=_value(row.kwargs, {}),
        options=_value(row.options, {}),
        policies=_policies(row),
        enabled=bool(row.enabled),
        disabled_reason=row.disabled_reason,
        start=row.start_at,
        next_run_time=row.next_run_time,
        last_run_time=row.last_run_time,
        retry_at=row.retry_at,
        locked_by=row.locked_by,
        locked_at=row.locked_at,
        lease_ends_at=row.lease_ends_at,
        fence=row.fence,
        run_id=None if row.run_id is None else str(row.run_id),
        quarantine=row.quarantine,
        code_owner=row.code_owner,
        deleted=bool(row.delete_requested),
        version=row.version,
        read_at=row.now,
        id=str(row.job_id),
    )


def run_of(row: RunRecord) -> Run:
    """The attempt that a row describes."""
    return Run(
        id=str(row.run_id),
        job_name=row.job_name,
        kind=row.kind,
        scheduled_for=row.scheduled_for,
        last_slot=row.last_slot,
        slots=row.slot_count,
        attempt=row.attempt,
        state=row.state,
        reason=row.reason,
        claimed_by=row.claimed_by,
        claimed_at=row.claimed_at,
        published_at=row.published_at,
        started_by=row.started_by,
        started_at=row.started_at,
        finished_at=row.finished_at,
        due_at=row.due_at,
        failures=row.failures,
        lost_leases=row.lost_leases,
        error=row.error,
        traceback=row.traceback,
        fence=row.fence,
        created_at=row.created_at,
        job_id=str(row.job_id),
    )


def plain(value: Any) -> Any:
    """A value as JSON takes it: instants as text in UTC, durations as seconds."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat() + "Z"  # every instant of ours is in UTC
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def _plain(record: Any) -> dict[str, Any]:
    return {field.name: plain(getattr(record, field.name)) for field in fields(record)}


def _schedule(row: JobRecord) -> str:
    if row.schedule is None:
        return f"every {DEFAULT_MINUTES if row.interval_minutes is None else row.interval_minutes}m"
    return str(row.schedule)


def _policies(row: JobRecord) -> Any:
    found = _value(row.policies, {})
    if row.lock_timeout_minutes is None or not isinstance(found, dict):
        return found
    minutes = row.lock_timeout_minutes
    return {**found, "lock_timeout": 60.0 * minutes if isinstance(minutes, int) else minutes}


def _value(text: Any, absent: Any) -> Any:
    if text is None:
        return absent
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text

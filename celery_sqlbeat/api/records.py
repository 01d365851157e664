"""Show jobs and attempts as frozen records of plain values; instants are aware datetimes in UTC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, TypeVar

from celery_sqlbeat.config.payload_key import is_sealed
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.config.redaction import HIDDEN
from celery_sqlbeat.model import JobRecord, RunRecord
from celery_sqlbeat.model.definition import DEFAULT_MINUTES, is_sensitive
from celery_sqlbeat.model.lifecycle import OPEN, RETRY
from celery_sqlbeat.model.one_offs import ONE_OFF

R = TypeVar("R", "Job", "Run")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was read; pass its `version` to change only that version.

    A field that cannot be parsed keeps its text; `quarantine` says what is wrong.
    """

    name: str
    task: str | None
    schedule: str
    """The text of its schedule; `code` if only the code that defines the job knows its slots."""
    timezone: str | None
    """The job's own time zone; None for that of its policy or of the app."""
    args: Any = field(repr=False)
    kwargs: Any = field(repr=False)
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
    """The beat or worker that holds it; None where it is free."""
    locked_at: datetime | Any | None
    lease_ends_at: datetime | Any | None
    fence: int
    run_id: str | None
    """The attempt that holds the job."""
    quarantine: str | None
    """Why it cannot run as it is written."""
    code_owner: str | None
    """The app whose `beat_schedule` defines it; None where the database does."""
    sensitive: bool
    """Whether its arguments are shown nowhere; JSON has `***` for them."""
    deleted: bool
    """Whether it is deleted as soon as its run has ended."""
    version: int
    read_at: datetime
    """The server's clock at that read."""
    id: str

    @property
    def state(self) -> str:
        """Name what it does now, in one word."""
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
        """Return plain values for JSON, its state among them."""
        values = plain_fields(self)
        for name in ("args", "kwargs"):
            if self.sensitive or is_sealed(values[name]):
                values[name] = HIDDEN
        return {"name": values.pop("name"), "state": self.state, **values}


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt of a slot, or a gap of slots that were skipped."""

    id: str
    """The run id, which is the id of the Celery task."""
    job_name: str | None
    """None for a one-off, which has no job."""
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
    """When a beat may claim it; set only for an extra slot or a replay."""
    failures: int
    lost_leases: int
    error: str | None
    traceback: str | None
    fence: int
    created_at: datetime
    job_id: str
    task: str | None = None
    """The task of a one-off; that of a job stands in its job."""
    is_new: bool = False
    """Whether the call that returned it has made it."""
    effects_done: bool = False
    """Whether its effects were committed in the database of the jobs, together with this mark."""

    @property
    def is_ended(self) -> bool:
        """Whether it has come to its end; a one-off that is tried again has not."""
        return self.state not in OPEN or (self.kind != ONE_OFF and self.state == RETRY)

    @property
    def seconds(self) -> float | None:
        """Return how long the task ran; None where it has not ended."""
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at).total_seconds()

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**plain_fields(self), "seconds": self.seconds}


def job_of(row: JobRecord, policies: Policies) -> Job:
    """Make the job that a row describes. `policies`: those of the settings."""
    return _record(
        Job,
        row,
        name=row.job_name,
        task=row.task_name,
        schedule=_schedule(row),
        timezone=row.time_zone,
        args=_value(row.args, []),
        kwargs=_value(row.kwargs, {}),
        options=_value(row.options, {}),
        policies=_policies(row),
        enabled=bool(row.enabled),
        start=row.start_at,
        run_id=None if row.run_id is None else str(row.run_id),
        sensitive=is_sensitive(row.job_name, row.policies, policies),
        deleted=bool(row.delete_requested),
        read_at=row.now,
        id=str(row.job_id),
    )


def run_of(row: RunRecord, is_new: bool = False) -> Run:
    """Make the attempt that a row describes."""
    is_one_off = row.kind == ONE_OFF
    return _record(
        Run,
        row,
        id=str(row.run_id),
        job_name=None if is_one_off else row.job_name,
        slots=row.slot_count,
        job_id=str(row.job_id),
        task=row.task_name,
        is_new=is_new,
        effects_done=bool(row.effects_done),
    )


def _record(kind: type[R], row: object, **own: Any) -> R:
    """Make a record of the fields of a row that have its names, and of its own ones."""
    shared = {field.name: getattr(row, field.name) for field in fields(kind) if field.name not in own}
    return kind(**shared, **own)


def plain(value: Any) -> Any:
    """Convert a value for JSON: instants to text in UTC, durations to seconds."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat() + "Z"  # all instants here are in UTC
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def plain_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a record as plain values for JSON."""
    return {field.name: plain(getattr(record, field.name)) for field in fields(record)}


def _schedule(row: JobRecord) -> str:
    if row.schedule is None:
        return f"every {DEFAULT_MINUTES if row.interval_minutes is None else row.interval_minutes}m"
    return str(row.schedule)


def _policies(row: JobRecord) -> Any:
    policies = _value(row.policies, {})
    if row.lock_timeout_minutes is None or not isinstance(policies, dict):
        return policies
    minutes = row.lock_timeout_minutes
    return {**policies, "lock_timeout": 60.0 * minutes if isinstance(minutes, int) else minutes}


def _value(text: Any, absent: Any) -> Any:
    if text is None:
        return absent
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text

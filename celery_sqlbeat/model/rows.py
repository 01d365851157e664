"""Rows of `Jobs` that somebody looks at: due, loose, or ended. Text that people wrote is not yet checked."""

from datetime import datetime
from typing import Any, NamedTuple


class DueJob(NamedTuple):
    """A row of `Jobs` whose time has come, as `read_due` gives it. Text that people wrote is not yet checked."""

    job_id: str
    job_name: str
    task_name: Any
    schedule: Any
    interval_minutes: Any
    time_zone: Any
    args: Any
    kwargs: Any
    options: Any
    policies: Any
    lock_timeout_minutes: Any
    code_key: str | None
    next_run_time: Any
    last_run_time: Any
    retry_at: Any
    fence: int
    left_run_id: str | None
    """The attempt that an unlocking by hand left behind."""
    run_id: str | None
    """The attempt that waits for its retry, or in the outbox."""
    planned_at: Any
    """The slot that the last claim planned to be the next one."""
    ran_until: Any
    """When the last run that had begun let go of the job."""
    extra: int
    """1 where this row stands for an attempt in the outbox, 0 where the schedule itself is due."""
    now: datetime
    """The server's clock when the row was read."""
    code_owner: str | None = None


class ReplaceableRun(NamedTuple):
    """A run that holds its job although the next slot has come, as `read_replaceable` gives it."""

    job_id: str
    job_name: str
    task_name: Any
    schedule: Any
    interval_minutes: Any
    time_zone: Any
    args: Any
    kwargs: Any
    options: Any
    policies: Any
    lock_timeout_minutes: Any
    code_key: str | None
    run_id: str
    claim_id: str
    fence: int
    replace_at: datetime
    started: int
    now: datetime


class LooseRow(NamedTuple):
    """A row of `Jobs` that needs attention, as `read_attention` gives it."""

    job_id: str
    job_name: str
    task_name: Any
    schedule: Any
    interval_minutes: Any
    time_zone: Any
    args: Any
    kwargs: Any
    options: Any
    policies: Any
    lock_timeout_minutes: Any
    code_key: str | None
    next_run_time: Any
    last_run_time: Any
    retry_at: Any
    fence: int
    quarantine: str | None
    start_at: Any
    delete_requested: int
    now: datetime


class HeldLease(NamedTuple):
    """A lease that was found past its end, as `read_ended` gives it."""

    job_id: str
    job_name: str
    run_id: str
    claim_id: str
    fence: int
    kind: str
    scheduled_for: datetime
    attempt: int
    state: str
    published_at: datetime | None
    started: bool
    republishes: int
    lease_seconds: float
    failures: int
    lost_leases: int
    exclusive: bool
    task_name: Any
    args: Any
    kwargs: Any
    options: Any
    code_key: str | None
    code_owner: str | None
    now: datetime

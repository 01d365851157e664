"""What an administrator writes and sees: jobs, runs, nodes."""

from datetime import datetime
from typing import Any, NamedTuple

from celery_sqlbeat.model.plan import GapRecord


class JobDraft(NamedTuple):
    """A job as somebody defines it; every field is checked already."""

    job_name: str
    task_name: str
    schedule: str | None
    time_zone: str | None
    args: str | None
    kwargs: str | None
    options: str | None
    policies: str | None
    enabled: bool
    start_at: datetime | None
    next_run_time: datetime | None
    lock_timeout_minutes: int | None


class JobArrival(NamedTuple):
    """A new job with what it brings along from elsewhere."""

    draft: JobDraft
    last_run_time: datetime | None
    disabled_reason: str | None


class JobChange(NamedTuple):
    """What a job becomes that is still at this version."""

    draft: JobDraft
    version: int
    reschedule: bool
    """Whether it gets the draft's next run, too."""
    enabled: bool | None
    """None: as it is."""
    gap: GapRecord | None
    fence: int | None = None
    """At which no run of it has ended since; None: that does not matter."""


class JobRecord(NamedTuple):
    """A row of `Jobs` as an administrator sees it."""

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
    enabled: int
    disabled_reason: str | None
    start_at: Any
    next_run_time: Any
    last_run_time: Any
    retry_at: Any
    locked_by: str | None
    locked_at: Any
    lease_ends_at: Any
    fence: int
    run_id: str | None
    quarantine: str | None
    code_key: str | None
    delete_requested: int
    version: int
    code_owner: str | None
    claimed_at: Any
    published_at: Any
    started_retry: int | None
    republishes: int
    now: datetime


class RunningJob(NamedTuple):
    """A job whose body runs, or was about to, with the run that it is in."""

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
    run_id: str
    worker: str | None
    started_at: datetime
    now: datetime


class JobCounts(NamedTuple):
    """How many jobs of a namespace are of each kind."""

    total: int
    active: int
    held: int
    retrying: int
    set_aside: int
    due: int
    due_at: Any
    """Since when the longest waiting one is due."""
    dead: int
    """The dead letters."""
    now: datetime


class RunRecord(NamedTuple):
    """A row of `JobRuns` as an administrator sees it."""

    run_id: str
    job_id: str
    job_name: str
    kind: str
    scheduled_for: datetime
    last_slot: datetime | None
    slot_count: int
    attempt: int
    state: str
    prior_state: str
    reason: str | None
    fence: int
    claimed_by: str | None
    claimed_at: datetime | None
    published_at: datetime | None
    started_by: str | None
    started_at: datetime | None
    finished_at: datetime | None
    failures: int
    lost_leases: int
    due_at: datetime | None
    error: str | None
    traceback: str | None
    created_at: datetime


class Node(NamedTuple):
    """A beat or a worker, as it describes itself."""

    node_id: str
    kind: str
    host: str
    pid: int
    package_version: str
    code_release: str | None = None
    queues: str | None = None
    """What `celery_sqlbeat.queues` tells."""
    broker_fingerprint: str | None = None
    skew_seconds: float | None = None
    claimed: int = 0
    code_owner: str | None = None
    """Whose `beat_schedule` it has."""
    tasks: str | None = None
    """A JSON list of the names of the tasks that a worker knows; None leaves what was told before."""
    details: str | None = None
    """A JSON object of what else others should know, a key for each concern; None leaves what was told before."""


class SeenNode(NamedTuple):
    """A node as the database knows it."""

    node_id: str
    kind: str
    host: str
    pid: int
    package_version: str
    code_release: str | None
    queues: str | None
    broker_fingerprint: str | None
    skew_seconds: float | None
    claimed: int
    code_owner: str | None
    details: str | None
    started_at: datetime
    heartbeat_at: datetime
    stopped_at: datetime | None
    now: datetime

"""The facts that walk through the house: rows read, claims made, runs started and ended. Frozen, without behaviour."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

SCHEDULE = "schedule"  # the kinds of slot
MANUAL = "manual"

CODE_SCHEDULE = "code"  # in the place of a schedule that only the code itself can tell
LEFT_THE_CODE = "left the code"  # the reason of a row that only the return of its entry may enable again


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
    extra: int
    """1 where this row stands for an attempt in the outbox, 0 where the schedule itself is due."""
    now: datetime
    """The server's clock when the row was read."""


class Attempt(NamedTuple):
    """The earlier attempt that a claim continues, as `read_attempts` gives it."""

    run_id: str
    job_id: str
    kind: str
    scheduled_for: datetime
    attempt: int
    state: str
    failures: int
    lost_leases: int
    advances: int


class Slot(NamedTuple):
    """The slot that a due row stands for, which attempt of it comes now, and what follows it."""

    kind: str
    scheduled_for: datetime
    attempt: int
    failures: int
    lost_leases: int
    planned_at: datetime | None
    delay_seconds: float | None
    advances: bool
    """Whether its outcome moves the job's `NextRunTime`."""
    continues: str | None
    """The run id of the attempt before this one."""
    same_run: bool
    """Whether that attempt itself is taken up again, so that the run id stays."""


class Claim(NamedTuple):
    """One slot of one job, claimed for one beat: what is recorded, and what the message will carry."""

    job_id: str
    job_name: str
    task_name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    run_id: str
    claim_id: str
    fence: int
    slot: Slot
    lease_seconds: float
    max_retries: int
    exclusive: bool
    code_key: str | None


class GapRecord(NamedTuple):
    """Slots of one job that were skipped, as one record."""

    run_id: str
    job_id: str
    first: datetime
    last: datetime
    slot_count: int
    reason: str
    attempt: int = 0


class LeftAttempt(NamedTuple):
    """An attempt that nothing waits for any more, because another one follows it.

    `again` sends it to the outbox instead: it was an extra slot that an unlocking by hand left behind.
    """

    run_id: str
    again: bool
    job_id: str


class Advance(NamedTuple):
    """A due job that does not run now: its next slot, or its end where that is `None`."""

    job_id: str
    fence: int
    next_slot: datetime | None


class Quarantine(NamedTuple):
    """A row that cannot run as it was written, and why."""

    job_id: str
    job_name: str
    fence: int
    reason: str


class Plan(NamedTuple):
    """What one batch of due rows becomes."""

    claims: list[Claim]
    gaps: list[GapRecord]
    left: list[LeftAttempt]
    advances: list[Advance]
    quarantines: list[Quarantine]


class StartRequest(NamedTuple):
    """A message that asks to begin. `start_id` is random: it makes the question safe to repeat."""

    run_id: str
    claim_id: str
    fence: int
    start_id: str
    celery_retries: int


class StartedRun(NamedTuple):
    """A run that may begin: what the worker needs to extend it and to decide its outcome."""

    run_id: str
    claim_id: str
    fence: int
    job_id: str
    job_name: str
    kind: str
    scheduled_for: datetime
    attempt: int
    lease_seconds: float
    max_retries: int
    failures: int
    lost_leases: int
    exclusive: int
    """1 where the run holds the lease of its job, 0 where runs of the job may overlap."""
    start_id: str
    """Which request this answers."""


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
    planned_at: datetime | None
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
    created_at: Any
    now: datetime


class Mend(NamedTuple):
    """A loose row that is in order now: its instants, filled in or brought into the database's form."""

    job_id: str
    fence: int
    next_run_time: datetime | None
    retry_at: datetime | None


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
    now: datetime


class CodeDefinition(NamedTuple):
    """An entry of a `beat_schedule`, as the table keeps it."""

    job_name: str
    task_name: str
    schedule: str
    """`code` where only the entry itself knows when it is due."""
    time_zone: str
    args: str | None
    kwargs: str | None
    options: str | None
    code_key: str | None
    """Set where some of it cannot be written as text: only a beat that has the entry may claim it."""


class CodeRow(NamedTuple):
    """A row of `Jobs` that belongs to a `beat_schedule`, as `read_code_jobs` gives it."""

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
    enabled: int
    disabled_reason: str | None
    next_run_time: Any
    last_run_time: Any
    claimed_at: datetime | None
    """When the run that holds the job was claimed."""
    run_id: str | None
    delete_requested: int
    created_at: Any


class CodeAddition(NamedTuple):
    """A job that a `beat_schedule` has and the table has not."""

    job_id: str
    definition: CodeDefinition
    next_run_time: datetime | None
    last_run_time: datetime | None


class CodeChange(NamedTuple):
    """A row that gets the definition of the code."""

    row: CodeRow
    definition: CodeDefinition
    reschedule: bool
    """Whether it gets this next run, too."""
    next_run_time: datetime | None


class CodeChanges(NamedTuple):
    """What makes the table say what the code says."""

    additions: list[CodeAddition]
    changes: list[CodeChange]
    departures: list[CodeRow]
    """Rows whose entry left the code."""


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
    """A JSON array of queue names."""
    broker_fingerprint: str | None = None
    skew_seconds: float | None = None
    claimed: int = 0
    code_owner: str | None = None
    """Whose `beat_schedule` it has."""


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
    started_at: datetime
    heartbeat_at: datetime
    stopped_at: datetime | None
    now: datetime

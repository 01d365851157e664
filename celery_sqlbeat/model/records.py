"""What an administrator sees: jobs and runs.

Runs on a worker: what asks to begin, and what has begun.
"""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple


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
    quarantined: int
    due: int
    due_at: Any
    """Since when the longest waiting one is due."""
    dead: int
    """The dead letters."""
    now: datetime
    states: Mapping[str, int] = MappingProxyType({})
    """The attempts of recent slots by state; each skipped slot counts."""
    owners: Mapping[str, int] = MappingProxyType({})
    """How many enabled jobs each app has."""


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
    check_in: str | None = None
    """What a monitor opened for its slot."""
    task_name: str | None = None
    """Of a one-off, which has no job that names it."""
    cancel_at: datetime | None = None
    """When somebody asked to cancel it, who and why."""
    cancel_by: str | None = None
    cancel_reason: str | None = None
    effects_done: int = 0
    """1 where its effects were committed in this database, together with this mark."""


class NewRun(NamedTuple):
    """An attempt under a new run id: an extra slot, due now, or the replay of a dead letter.

    The replay of a one-off has the id of its letter, as all its attempts.
    """

    run_id: str
    job_id: str
    letter: RunRecord | None = None


class StartRequest(NamedTuple):
    """A message that asks to begin. `start_id` is random: it makes the question safe to repeat."""

    run_id: str
    claim_id: str
    fence: int
    start_id: str
    celery_retries: int


class RefusedStart(NamedTuple):
    """The run of a message that may not begin, as it stands."""

    run_id: str
    state: str
    reason: str | None
    is_its_claim: int
    """1 where the claim of the message is the run's own."""
    has_started: int
    """1 where somebody has begun the run."""


class Unbegun(NamedTuple):
    """A message that a worker holds, and whose run it has not begun: by what its header says."""

    run_id: str
    claim_id: str
    fence: int
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
    max_runtime: float | None = None
    """How many seconds its body may take, each time that it begins; None: as many as it likes."""
    celery_retries: int = 0
    """The number of Celery's own retry that began; a later one takes the run over."""


class EndedSlot(NamedTuple):
    """A slot that ended with another attempt than its first."""

    run_id: str
    """Of the attempt that ended it."""
    job_name: str
    attempt: int
    state: str
    task_name: Any
    options: Any
    earlier: tuple[tuple[str, int], ...] = ()
    """The run ids of the attempts before, and which each was."""

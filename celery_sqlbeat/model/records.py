"""What an administrator writes and sees: jobs and runs.

Runs on a worker: what asks to begin, and what has begun.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from celery_sqlbeat.model.claims import GapRecord


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


@dataclass(frozen=True, slots=True)
class _DraftWrite:
    draft: JobDraft

    @property
    def job_name(self) -> str:
        """The name of the job."""
        return self.draft.job_name


@dataclass(frozen=True, slots=True)
class AddJob(_DraftWrite):
    """Add a job; it expects that none has this name."""

    _: KW_ONLY
    last_run_time: datetime | None = None
    """When it ran last elsewhere."""
    disabled_reason: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateJob(_DraftWrite):
    """Change a job that is at this version."""

    _: KW_ONLY
    version: int
    reschedule: bool
    """Whether it gets the draft's next run, too."""
    enabled: bool | None = None
    """None: as it is."""
    gap: GapRecord | None = None
    """What was skipped while the job was paused."""
    fence: int | None = None
    """At which no run of it has ended since; None: that does not matter."""


@dataclass(frozen=True, slots=True)
class PauseJob:
    """Pause a job that is enabled, and at this version; None: at any."""

    job_name: str
    reason: str
    _: KW_ONLY
    version: int | None = None


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """Resume a job that is paused, and at this version."""

    job_name: str
    _: KW_ONLY
    version: int
    next_run_time: datetime | None
    gap: GapRecord | None = None
    """The slots skipped."""
    finished: bool = False
    """Whether no slot is left, so that the job stays disabled for that reason."""
    fence: int | None = None
    """At which no run of it has ended since; None: that does not matter."""


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a job at this version (None: at any) once its runs have ended."""

    job_name: str
    _: KW_ONLY
    force: bool = False
    """Whether its runs are cancelled, so that it goes at once."""
    version: int | None = None


JobChange = UpdateJob | PauseJob | ResumeJob | DeleteJob
JobWrite = AddJob | JobChange


class JobWriteResult(NamedTuple):
    """The outcome of a batch of writes, as the names of jobs."""

    done: set[str]
    conflicts: set[str]
    """These are not as their writes expect, and stay as they are."""


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


class NewRun(NamedTuple):
    """An attempt under a new run id: an extra slot, due now, or the replay of a dead letter."""

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

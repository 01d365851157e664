"""What a batch of due rows becomes: slots, claims, gaps, and what is set aside.

Rows of `Jobs`: due, in need of repair, or ended. Their text is not yet checked.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from celery_sqlbeat.config.policy import RetryRule

SCHEDULE = "schedule"  # the kinds of slot
MANUAL = "manual"
FINISHED = "finished"  # why the database disables a job whose schedule has no slot left
LONGEST_QUARANTINE = 500  # characters, as wide as the column
LEFT = 0  # what becomes of an attempt that another one follows: it stays as it is
SENT_BACK = 1  # it was an extra slot that an unlocking by hand left behind, and waits in the outbox
REPLACED = 2  # its slot makes room for the next one, and is over
PAUSED = "paused"  # why slots of a job were skipped, and why it is disabled, where nobody gave another reason


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
    reason: str | None = None
    created_at: datetime | None = None
    seen_next_run_time: datetime | None = None
    """`NextRunTime` as the slot's first attempt read it; a later change is an operator's."""


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
    unknown_seconds: float | None = None
    """The age of an attempt that was released because no worker knew its task, or None."""


class Claim(NamedTuple):
    """One slot that one beat has claimed: what is recorded, and what its message carries."""

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
    timeline: Any = None
    """The slots of its job, for tools that want to see the schedule; None where it was not read."""
    max_runtime: float | None = None
    """How many seconds its body may take; None: as many as it likes."""
    replace_at: datetime | None = None
    """When its run is to make room for the next slot, if it goes on until then."""
    max_parallel: int | None = None
    """How many runs of its job may go on beside each other."""
    is_sensitive: bool = False
    """Whether its arguments are shown nowhere."""
    check_in: str | None = None
    """The check-in that a monitor opened for the slot when an earlier message was sent."""
    retry: RetryRule | None = None
    """What its job says of retries, for the worker; None: nothing of its own."""
    pool: str | None = None
    """The pool that its run takes a place of."""


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
    """An attempt that nothing waits for any more; another one follows it.

    `again`: LEFT, SENT_BACK or REPLACED.
    """

    run_id: str
    again: int
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
    version: int
    reason: str


class Plan(NamedTuple):
    """What one batch of due rows becomes."""

    claims: list[Claim]
    gaps: list[GapRecord]
    left: list[LeftAttempt]
    advances: list[Advance]
    quarantines: list[Quarantine]
    locked: "list[DueJob]"
    """Rows whose arguments no key opens here: they are left to a beat that has it."""

    def only(self, job_ids: Collection[str]) -> "Plan":
        """Return the part of the plan that concerns these jobs."""
        parts: Iterator[Any] = ([row for row in rows if row.job_id in job_ids] for rows in self)
        return Plan(*parts)


class DueJob(NamedTuple):
    """A row of `Jobs` whose time has come, as `read_due` gives it.

    Text that people wrote is not yet checked.
    """

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
    version: int = 1
    open_runs: int = 0
    """How many runs of a job with `max_parallel` go on, or are on their way to a worker."""


class DueBatch(NamedTuple):
    """What was read of due jobs, and so what a claim compares with."""

    jobs: Sequence[DueJob] = ()
    attempts: Mapping[str, Attempt] = MappingProxyType({})
    """The attempts that the next ones of these jobs continue, by run id."""


class Claimed(NamedTuple):
    """The outcome of a claim, without what somebody else changed, claimed or keeps locked."""

    claims: list[Claim]
    gaps: list[GapRecord]
    quarantines: list[Quarantine]
    missed: set[str]
    """The ids of jobs that are not as they were read: nothing was written about them."""
    advanced: int = 0
    """How many jobs were moved on to a later slot."""

    @property
    def is_news(self) -> bool:
        """Whether anything was written."""
        return bool(self.claims or self.advanced or self.quarantines)


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
    claimed_at: datetime | None
    published_at: datetime | None
    locked_at: datetime | None
    """When a beat last moved its start deadline, as before a copy; else of the claim."""
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
    policies: Any = None

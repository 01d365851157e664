"""Runs on a worker: what asks to begin, and what has begun."""

from datetime import datetime
from typing import Any, NamedTuple


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

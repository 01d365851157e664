"""What is written about jobs, by administrators and by the upkeep of beats."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from celery_sqlbeat.model.claims import GapRecord

CANCELLED_BY_HAND = "cancelled by hand"  # why a run ended, where nobody gave another reason


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
class SealJob:
    """Write the arguments of a job that is at this version, as they are to be kept."""

    job_name: str
    _: KW_ONLY
    version: int
    args: str | None
    kwargs: str | None


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a job at this version (None: at any) once its runs have ended."""

    job_name: str
    _: KW_ONLY
    force: bool = False
    """Whether its runs are cancelled, so that it goes at once."""
    version: int | None = None


@dataclass(frozen=True, slots=True)
class RepairJob:
    """Write a job's instants in the store's form, and end its quarantine.

    It expects a job that no run holds, at this fence and version.
    """

    job_name: str
    job_id: str
    fence: int
    version: int
    next_run_time: datetime | None
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class QuarantineJob:
    """Set a job aside that cannot run as it was written; it expects what a RepairJob does."""

    job_name: str
    job_id: str
    fence: int
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteIdleJob:
    """Delete a job whose deletion was asked for, once its runs have ended."""

    job_name: str
    job_id: str


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Cancel the run that holds a job; its worker stops the task at the next heartbeat."""

    job_name: str
    reason: str = CANCELLED_BY_HAND


JobChange = UpdateJob | PauseJob | ResumeJob | SealJob | DeleteJob
JobUpkeep = RepairJob | QuarantineJob | DeleteIdleJob
JobWrite = AddJob | JobChange | JobUpkeep | CancelRun


class JobWriteResult(NamedTuple):
    """The outcome of a batch of writes, as the names of jobs."""

    done: set[str]
    conflicts: set[str]
    """These are not as their writes expect, and stay as they are."""
    refused: Mapping[str, str] = MappingProxyType({})
    """What the store does not take of an upkeep, and why; all others could be written."""

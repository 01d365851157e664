"""The entries of a `beat_schedule`, on their way into the table."""

from datetime import datetime
from typing import Any, NamedTuple

CODE_SCHEDULE = "code"  # in the place of a schedule that only the code itself can tell
LEFT_THE_CODE = "left the code"  # the reason of a row that only the return of its entry may enable again


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

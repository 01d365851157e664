"""The rows as the checks see them: what every write left behind.

Instants are text, as SQLite has them.
"""

from datetime import datetime, timezone
from functools import lru_cache
from typing import NamedTuple


class JobRow(NamedTuple):
    """A row of `Jobs`."""

    id: str
    job_name: str
    enabled: int
    next_run_time: str | None
    last_run_time: str | None
    retry_at: str | None
    retry_run_id: str | None
    locked_by: str | None
    locked_at: str | None
    lease_ends_at: str | None
    claimed_at: str | None
    published_at: str | None
    planned_at: str | None
    fence: int
    run_id: str | None
    claim_id: str | None
    started_retry: int | None
    republishes: int
    quarantine: str | None
    delete_requested: int
    disabled_reason: str | None
    version: int
    ran_until: str | None
    replace_at: str | None

    @property
    def holder(self) -> tuple[str | None, str | None, int] | None:
        """Who holds the job."""
        return None if self.locked_by is None else (self.run_id, self.claim_id, self.fence)


class RunRow(NamedTuple):
    """A row of `JobRuns`."""

    run_id: str
    job_id: str
    job_name: str
    kind: str
    scheduled_for: str
    last_slot: str | None
    slot_count: int
    attempt: int
    state: str
    prior_state: str
    reason: str | None
    fence: int
    claim_id: str | None
    claimed_at: str | None
    started_by: str | None
    start_id: str | None
    started_retry: int | None
    finished_at: str | None
    planned_at: str | None
    delay_seconds: float | None
    seen_next_run_time: str | None
    lease_seconds: float
    max_retries: int
    failures: int
    lost_leases: int
    exclusive: int
    advances: int
    due_at: str | None
    held_by: str | None
    lease_ends_at: str | None

    @property
    def slot(self) -> tuple[str, str, str]:
        """The slot that this is an attempt of."""
        return self.job_id, self.scheduled_for, self.kind

    @property
    def is_gap(self) -> bool:
        """Whether it stands for slots that were skipped together."""
        return self.last_slot is not None


def columns(row: type[JobRow] | type[RunRow]) -> list[str]:
    """Return the columns of a table, in the order of the fields."""
    return ["".join(part.capitalize() for part in field.split("_")) for field in row._fields]


@lru_cache(maxsize=4096)
def instant(text: str) -> datetime:
    """Return the instant of a text."""
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def seconds_from(earlier: str, later: str) -> float:
    """How much later the one is than the other."""
    return (instant(later) - instant(earlier)).total_seconds()

"""What an explanation goes by. Gathered by inquiry.py; nothing is asked for later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_sqlbeat.definition import Definition
from celery_sqlbeat.handle.records import Job, Run
from celery_sqlbeat.handle.status import Process


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a job."""

    job: Job
    definition: Definition | None
    """None where the row cannot be read, and then the job's quarantine says why."""
    runs: Sequence[Run]
    """Its attempts, latest slot and attempt first."""
    processes: Sequence[Process]
    queue: str | None
    """Where its messages go."""
    claimed_at: datetime | None
    published_at: datetime | None
    started: bool
    republishes: int
    is_unknown: bool = False
    """Whether living workers consume its queue, and none of them knows its task."""
    unknown_seconds: float = 0.0
    """For how long a slot waits for one that does."""

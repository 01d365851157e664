"""Define the facts and findings of a check. A fact is None where it could not be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from celery_sqlbeat.api.status import Process, WorkerTasks
from celery_sqlbeat.beat.other_schedulers import DoubledJobs, LeftRows
from celery_sqlbeat.beat_schedule.entries import EntryProblem
from celery_sqlbeat.celery_bridge.inspect_workers import Answer
from celery_sqlbeat.config.policy import Policy
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.model import LivingRelease
from celery_sqlbeat.model.run_times import LongRun, SlowJob
from celery_sqlbeat.store.records import Remark

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")  # the worst first

MOST_NAMES = 5  # jobs or workers named in one sentence


class Finding(NamedTuple):
    """What a check found, and what to do about it.

    An error keeps jobs from running. A warning may be intended. A note is worth knowing.
    """

    level: Level
    name: str
    """The family and the fact, for programs: `extension`, `visibility-timeout`."""
    says: str
    remedy: str


def listed(names: list[str]) -> str:
    """Join names for a sentence: a few of them, and how many more there are."""
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


@dataclass(frozen=True, slots=True)
class EnabledJob:
    """An enabled job of the table."""

    name: str
    task: str
    queue: str | None
    """None where it is decided elsewhere, or unknown."""
    lease_seconds: float
    owner: str | None = None
    """The app whose code defines it."""
    refusal: str | None = None
    """Why no message can ever be made of it."""
    has_task_id: bool = False
    """Whether its options set a `task_id`."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The enabled jobs that were read, and those in quarantine."""

    enabled: Sequence[EnabledJob] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Why each of these cannot run as it is written, by name."""
    is_complete: bool = True
    """False where there were too many to read in time."""
    locked: Sequence[str] = ()
    """Enabled jobs whose arguments no key opens here."""


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """The facts of the database."""

    store: str
    skew_seconds: float
    processes: Sequence[Process]
    jobs: JobFacts
    living: Sequence[LivingRelease] = ()
    """The releases that the living beats have."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Jobs whose messages the broker refuses: the reports of beats, by name."""
    long_runs: Sequence[LongRun] = ()
    """Runs that take several intervals of their job."""
    worker_tasks: Sequence[WorkerTasks] = ()
    """The queues and tasks of the living workers."""
    doubled: Sequence[DoubledJobs] = ()
    """Jobs that another scheduler sends as well."""
    left_rows: LeftRows | None = None
    """Enabled rows of django-celery-beat that are not in the table."""
    remark: str | None = None
    """A remark about the schema."""
    slow_jobs: Sequence[SlowJob] = ()
    """Jobs whose runs take longer than their period."""
    remarks: Sequence[Remark] = ()
    """What the store says of its server."""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The facts of the broker, and of the workers that answer through it."""

    transport: str
    fingerprint: str
    visibility_timeout: float | None
    """In seconds, where the broker has such a thing."""
    answers: Sequence[Answer] | None
    """The workers that answered; None where they could not be asked."""
    registered_tasks: frozenset[str] | None
    """The tasks that they have registered; None where they were not asked."""


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """The facts of the app."""

    tasks: frozenset[str]
    policies: Mapping[str, Policy]
    """The policy of each entry of the beat_schedule, by its name."""
    problems: Sequence[EntryProblem]
    owner: str = ""
    """The name of the app as the owner of jobs."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Why no message can ever be made of an entry that no row can hold, by name."""
    with_task_id: Sequence[str] = ()
    """Entries whose options give their messages an id."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of a check."""

    settings: Settings
    database: DatabaseFacts | None
    broker: BrokerFacts | None
    code: CodeFacts | None

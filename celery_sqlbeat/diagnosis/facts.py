"""What a check goes by. None where it could not be found out, and then another finding says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from celery_sqlbeat.beat.django_rows import LeftRows
from celery_sqlbeat.beat.entries import EntryProblem
from celery_sqlbeat.beat.strangers import Doubled
from celery_sqlbeat.config import Settings
from celery_sqlbeat.handle.knowing import Knower
from celery_sqlbeat.handle.status import Process
from celery_sqlbeat.long_runs import LongRun
from celery_sqlbeat.model import LivingRelease
from celery_sqlbeat.pace import SlowJob
from celery_sqlbeat.policy import Policy
from celery_sqlbeat.roster import Answer


@dataclass(frozen=True, slots=True)
class SeenJob:
    """An enabled job of the table."""

    name: str
    task: str
    queue: str | None
    """None where that is decided elsewhere, or unknown."""
    lease_seconds: float
    owner: str | None = None
    """The app whose code defines it."""
    refusal: str | None = None
    """Why no message can ever be made of it."""
    has_task_id: bool = False
    """Whether its options give its messages an id."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs that were looked at."""

    seen: Sequence[SeenJob] = ()
    set_aside: Mapping[str, str] = field(default_factory=dict)
    """Why each of these cannot run as it is written, by name."""
    is_whole: bool = True
    """False where there were too many of them for the time."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What the database says."""

    store: str
    skew_seconds: float
    processes: Sequence[Process]
    jobs: Jobs
    living: Sequence[LivingRelease] = ()
    """What the living beats have in their code."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Jobs whose messages nobody takes: what beats tell of them, by name."""
    long_runs: Sequence[LongRun] = ()
    """Runs that go on for several intervals of their job."""
    knowers: Sequence[Knower] = ()
    """The living workers, with what they know."""
    doubled: Sequence[Doubled] = ()
    """Jobs that another scheduler sends, too."""
    left_rows: LeftRows | None = None
    """Enabled rows of django-celery-beat that are not in the table."""
    remark: str | None = None
    """What is worth knowing of the schema."""
    slow_jobs: Sequence[SlowJob] = ()
    """Jobs whose runs take longer than their period."""
    pooling: str | None = None
    """What a pooler before the server gives its clients."""


@dataclass(frozen=True, slots=True)
class Wire:
    """What the broker and those behind it say."""

    transport: str
    fingerprint: str
    visibility_timeout: float | None
    """In seconds, where the broker has such a thing."""
    roll: Sequence[Answer] | None
    """The workers that answered; None where they could not be asked."""
    worker_tasks: frozenset[str] | None
    """What they have registered; None where nobody asked."""


@dataclass(frozen=True, slots=True)
class Code:
    """What the app itself says."""

    tasks: frozenset[str]
    policies: Mapping[str, Policy]
    """Of each entry of the beat_schedule, by its name."""
    problems: Sequence[EntryProblem]
    owner: str = ""
    """The app, as its jobs name it."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Of entries whose arguments no text can hold: why no message can ever be made of them, by name."""
    with_task_id: Sequence[str] = ()
    """Entries whose options give their messages an id."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a check goes by."""

    settings: Settings
    ground: Ground | None
    wire: Wire | None
    code: Code | None

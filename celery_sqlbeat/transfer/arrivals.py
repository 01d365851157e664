"""What a source says of its jobs, and what of it can have no place in the table. Plain facts, still unchecked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple

from celery_sqlbeat.beat.code import StockRun
from celery_sqlbeat.beat.entries import CodeSchedule


@dataclass(frozen=True)
class Arrival:
    """One job as its source has it, by the names that `jobs.put` takes."""

    name: str
    fields: Mapping[str, Any]
    last_run_time: datetime | None = None
    """When it ran last, for the record."""
    counts_from: datetime | None = None
    """From when its next slot is counted: the old scheduler's last run. None: from now."""
    next_run_time: datetime | None = None
    """When it is due next, where the source knows; that counts before all else."""
    disabled_reason: str | None = None
    finished: bool = False
    """Nothing is left of its schedule."""
    remarks: tuple[str, ...] = ()
    """What of it is lost on the way."""


class Left(NamedTuple):
    """A job that stays behind, and why."""

    name: str
    reason: str


@dataclass
class Shop:
    """Everything that a scheduler knows: jobs of its own, and what it knows of the entries of a `beat_schedule`."""

    code: CodeSchedule
    """Those entries stay with the code; a beat would bring them, too."""
    runs: dict[str, StockRun] = field(default_factory=dict)
    """Their last runs, by job name."""
    paused: set[str] = field(default_factory=set)
    """Those of them that somebody has disabled in the old scheduler."""
    arrivals: list[Arrival] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    def leave(self, name: str, reason: str) -> None:
        """Say that a job stays behind."""
        self.left.append(Left(name, reason))

    def is_of_the_code(self, name: str, run: StockRun | None, enabled: bool) -> bool:
        """Whether the code defines this entry; then only what became of it in the old scheduler is noted."""
        if name in self.code.entries:
            if run is not None:
                self.runs[name] = run
            if not enabled:
                self.paused.add(name)
            return True
        return name in self.code.wrong  # left already, with its reason


def utc(at: Any) -> datetime | None:
    """An instant as schedulers write it; without a time zone it is UTC, as Celery takes it."""
    if not isinstance(at, datetime):
        return None
    return at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)

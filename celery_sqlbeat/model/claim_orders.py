"""Which of the due jobs a beat claims first, where more are due than one batch.

A claim order is a pure function of the candidates, oldest first: it returns them in the order in
which they are to be claimed. What it leaves out comes last.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import zip_longest
from typing import Any, NamedTuple

from celery_sqlbeat import events
from celery_sqlbeat.config.plugins import CLAIM_ORDERS
from celery_sqlbeat.model import DueBatch, DueJob

OLDEST = "oldest"
READ_AHEAD = 4  # batches of due jobs, of which one is chosen; what is due behind them waits


class Candidate(NamedTuple):
    """What a claim order is told of one due job."""

    job_id: str
    job_name: str
    owner: str | None
    """The app whose `beat_schedule` has it; None for the jobs of the table."""
    due_at: datetime
    priority: int
    """Of its options, none counts as 0."""
    is_extra: bool
    """Whether somebody asked for this run, or a retry of it: such runs are the first to be read."""


ClaimOrder = Callable[[Sequence[Candidate]], Sequence[Candidate]]


def oldest(due: Sequence[Candidate]) -> Sequence[Candidate]:
    """Claim in the order in which they came due."""
    return due


def priority(due: Sequence[Candidate]) -> Sequence[Candidate]:
    """Claim the highest number first, and the oldest of equal ones."""
    return sorted(due, key=lambda each: -each.priority)


def fair(due: Sequence[Candidate]) -> Sequence[Candidate]:
    """Claim the oldest of each owner, then the second one of each, and so on."""
    by_owner: dict[str | None, list[Candidate]] = {}
    for each in due:
        by_owner.setdefault(each.owner, []).append(each)
    return [each for turn in zip_longest(*by_owner.values()) for each in turn if each is not None]


class ChosenOrder:
    """Chooses a batch by the order of this name; one that fails is told of once, and not used."""

    def __init__(self, name: str) -> None:
        """Load the order of this name."""
        self._name = name
        self._order: ClaimOrder = CLAIM_ORDERS.load(name)
        self._is_told = False

    def __call__(self, due: DueBatch, batch_size: int) -> DueBatch:
        """Return the batch that is to be claimed first."""
        if len(due.jobs) <= batch_size:
            return due  # all are claimed now
        jobs = {job.job_id: job for job in due.jobs}
        first = [jobs[job_id] for job_id in dict.fromkeys(self._asked(due.jobs)) if job_id in jobs]
        chosen = {job.job_id for job in first}
        return due._replace(jobs=[*first, *(job for job in due.jobs if job.job_id not in chosen)][:batch_size])

    def _asked(self, jobs: Sequence[DueJob]) -> list[str]:
        try:
            return [each.job_id for each in self._order([candidate_of(job) for job in jobs])]
        except Exception as error:  # whatever it raises, or where it answers with something else
            if not self._is_told:
                self._is_told = True
                text = f"the claim order {self._name} failed, and the oldest jobs are claimed first: "
                text += f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
                events.advice(topic="claim order", text=text, remedy="let it return the candidates that it is given")
            return []


def order_of(name: str) -> ChosenOrder | None:
    """Return what chooses batches; None where the store's own order is wanted."""
    return None if name == OLDEST else ChosenOrder(name)


def candidate_of(job: DueJob) -> Candidate:
    """Return what an order may know of a due job, whose row may say anything."""
    ats = (job.retry_at, job.next_run_time)
    due_at = next((at for at in ats if isinstance(at, datetime)), datetime.max.replace(tzinfo=timezone.utc))
    return Candidate(job.job_id, job.job_name, job.code_owner, due_at, _priority(job.options), bool(job.extra))


def _priority(options: Any) -> int:
    try:
        number = json.loads(options).get("priority") if options else 0
    except (TypeError, ValueError, AttributeError, RecursionError):
        return 0
    return number if isinstance(number, int) else 0

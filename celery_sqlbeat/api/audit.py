"""Audit a history: duplicates, losses and take-overs, by slots, attempts and grids. Pure.

It trusts no counter of the store.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from celery_sqlbeat.model import SCHEDULE, JobRecord, RunRecord
from celery_sqlbeat.model.lifecycle import DISPATCHED, OPEN, RETRY, SCHEDULED, SUCCESS

Grid = Callable[[datetime], datetime | None]
"""The slot after a slot, of jobs that keep to a grid: crontabs, and intervals at a fixed rate."""

_MOST_MISSING = 1000  # slots of one hole that are counted; more of them change no result


class Audit(NamedTuple):
    """The counts, and each finding in words."""

    slots: int
    duplicates: int
    lost: int
    taken_over: int
    findings: list[str]

    @property
    def is_clean(self) -> bool:
        """Tell whether no slot ran twice and none was lost."""
        return self.duplicates == self.lost == 0

    def __str__(self) -> str:
        return f"slots: {self.slots}  duplicates: {self.duplicates}  lost: {self.lost}  taken over: {self.taken_over}"


def audit(
    runs: Iterable[RunRecord],
    jobs: Mapping[str, JobRecord],
    grids: Mapping[str, Grid],
    begun: Iterable[str] = (),
) -> Audit:
    """Audit a whole history. `begun` has a run id for each time that the body of a task began."""
    by_job: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        by_job[run.job_name].append(run)
    duplicates = [f"run {run_id} began {count} times" for run_id, count in Counter(begun).items() if count > 1]
    lost: list[str] = []
    slots: list[list[RunRecord]] = []
    for name, history in by_job.items():
        attempts = _attempts(history)
        slots += attempts.values()
        duplicates += _ran_twice(name, attempts)
        duplicates += _overlaps(name, history)
        lost += _left_open(name, attempts, jobs.get(name))
        if name in grids:
            holes, off_grid = _against_the_grid(name, history, grids[name], jobs.get(name))
            lost += holes
            duplicates += off_grid
    count = sum(slot[0].slot_count for slot in slots)
    taken_over = sum(any(run.lost_leases for run in slot) for slot in slots)
    return Audit(count, len(duplicates), len(lost), taken_over, duplicates + lost)


SlotKey = tuple[str, datetime]


def _attempts(history: Iterable[RunRecord]) -> dict[SlotKey, list[RunRecord]]:
    """Group the attempts by slot, in their order."""
    slots: dict[SlotKey, list[RunRecord]] = defaultdict(list)
    for run in sorted(history, key=lambda run: run.attempt):
        slots[run.kind, run.scheduled_for].append(run)
    return slots


def _ran_twice(name: str, slots: Mapping[SlotKey, list[RunRecord]]) -> Iterator[str]:
    for (_, at), attempts in slots.items():
        numbers = [run.attempt for run in attempts]
        if len(set(numbers)) < len(numbers):
            yield f"{name} {at}: two rows are the same attempt"
        done = [run for run in attempts if run.state in (SUCCESS, DISPATCHED)]
        if done and done[0] is not attempts[-1]:
            yield f"{name} {at}: ran again after its attempt {done[0].attempt} was {done[0].state}"
    gaps = [run for attempts in slots.values() for run in attempts if run.last_slot is not None]
    for (kind, at), attempts in slots.items():
        for gap in gaps:
            if kind == gap.kind and attempts[0] is not gap and gap.scheduled_for <= at <= (gap.last_slot or at):
                yield f"{name} {at}: both skipped and run"


def _overlaps(name: str, history: Iterable[RunRecord]) -> Iterator[str]:
    """Find runs of a job that overlap; one that was taken over counts until its release."""
    begun = sorted((run for run in history if run.started_at is not None), key=lambda run: run.started_at)  # type: ignore[arg-type,return-value]  # mypy does not see the condition
    for run, later in pairwise(begun):
        if later.started_at is not None and (run.finished_at is None or later.started_at < run.finished_at):
            yield f"{name}: {later.scheduled_for} began before {run.scheduled_for} had ended"


def _left_open(name: str, slots: Mapping[SlotKey, list[RunRecord]], job: JobRecord | None) -> Iterator[str]:
    """Find slots without an outcome that nothing will ever take up again."""
    for (_, at), attempts in slots.items():
        last = attempts[-1]
        if last.state in OPEN and not _is_awaited(last, job):
            yield f"{name} {at}: attempt {last.attempt} is {last.state}, and nothing stands for it"


def _is_awaited(run: RunRecord, job: JobRecord | None) -> bool:
    if run.due_at is not None:
        return True
    if job is None:
        return False
    return job.run_id == run.run_id or (run.state in (RETRY, SCHEDULED) and job.retry_at is not None)


def _against_the_grid(
    name: str, history: Sequence[RunRecord], grid: Grid, job: JobRecord | None
) -> tuple[list[str], list[str]]:
    """Find the slots that are missing between the first and the last, and those off the grid."""
    holes: list[str] = []
    off_grid: list[str] = []
    planned = {(run.scheduled_for, run.last_slot or run.scheduled_for) for run in history if run.kind == SCHEDULE}
    spans = sorted(planned)
    if job is not None and job.run_id is None and job.retry_at is None and isinstance(job.next_run_time, datetime):
        spans.append((job.next_run_time, job.next_run_time))  # nothing is missing before what comes next, either
    for (_, last), (first, _) in pairwise(spans):
        expected = grid(last)
        for _ in range(_MOST_MISSING):
            if expected is None or expected >= first:
                break
            holes.append(f"{name} {expected}: no record of this slot")
            expected = grid(expected)
        if expected != first:
            off_grid.append(f"{name} {first}: not a slot of its schedule")
    return holes, off_grid

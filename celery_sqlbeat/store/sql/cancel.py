"""Cancel runs: end those that have not begun, and leave word for the workers of the others.

What somebody holds is asked first, and ended then: from the first moment on it can only end as
cancelled, whoever is faster. What waits is taken from its job by a fence that grows.
"""

import itertools
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat.errors import DatabaseBusy
from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    CLAIMED,
    DISPATCHED,
    RETRY,
    RUNNING,
    SCHEDULED,
    Ending,
    after_cancellation,
)
from celery_sqlbeat.model.one_offs import Asked, Cancellation, CancelRequest
from celery_sqlbeat.store.records import Guard, Release
from celery_sqlbeat.store.sql.engine import Part
from celery_sqlbeat.store.sql.runs import release
from celery_sqlbeat.store.sql.session import Row, Session

_MOST_STEPS = 20
_PAUSE = 0.05  # seconds between two steps, while others change these very rows


class _Run(NamedTuple):
    """A run as `read_cancellable` reads it."""

    run_id: str
    job_id: str
    state: str
    fence: int
    exclusive: int
    claim_id: str | None
    due_at: datetime | None
    started_at: datetime | None
    held_by: str | None
    cancel_at: datetime | None
    reason: str | None
    job_fence: int | None
    """None: its job is gone."""
    locked_by: str | None
    left_run_id: str | None
    waiting_run_id: str | None
    is_followed: int
    now: datetime

    @property
    def is_held(self) -> bool:
        """Whether somebody has its lease."""
        return self.held_by is not None or (self.locked_by is not None and self.left_run_id == self.run_id)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or another attempt of its slot has followed."""
        if self.state == DISPATCHED:
            return self.started_at is not None
        if self.state == RETRY:
            return bool(self.is_followed) or (self.due_at is None and self.waiting_run_id != self.run_id)
        return self.state not in (SCHEDULED, CLAIMED, RUNNING)

    @property
    def is_of_its_job(self) -> bool:
        """Whether its job's row names it, where it is not held."""
        return self.run_id in (self.waiting_run_id, self.left_run_id)

    @property
    def needs_its_job(self) -> bool:
        """Whether who takes it up goes by its job's row, where it is not held."""
        # Another start of what was fired and forgotten locks the run first, and the job then.
        return self.job_fence is not None and (self.state != DISPATCHED or bool(self.exclusive))

    def answer(self) -> Cancellation | None:
        """Return what became of a request; None where it is still to be done."""
        if self.is_over:
            return Cancellation(self.state, self.state == CANCELLED and self.cancel_at is not None, False)
        if self.state == RUNNING and self.is_held and self.cancel_at is not None:
            return Cancellation(RUNNING, False, True)
        return None


class Cancellations(Part):
    """The verb `cancel`."""

    def cancel(self, requests: Sequence[CancelRequest]) -> dict[str, Cancellation]:
        """End runs that have not begun, and ask the workers of the others to stop them."""
        waiting = {request.run_id: request for request in sorted(requests)}
        answers: dict[str, Cancellation] = {}
        for step in itertools.count():
            runs = self._read(waiting)
            answers |= {run.run_id: answer for run in runs if (answer := run.answer()) is not None}
            waiting = {run.run_id: waiting[run.run_id] for run in runs if run.run_id not in answers}
            if not waiting:
                break
            if step >= _MOST_STEPS:
                raise DatabaseBusy(f"others keep {len(waiting)} runs locked that are to be cancelled, or change them")
            if step > 1:  # the first step has asked, and the second has not ended it
                threading.Event().wait(_PAUSE)
            self._take([(run, waiting[run.run_id]) for run in runs if run.run_id in waiting])
        return answers

    def _read(self, run_ids: Iterable[str]) -> list[_Run]:
        rows = [(run_id,) for run_id in run_ids]
        answer = self.database.read("read_cancellable", rows, namespace=self.namespace) if rows else []
        return [_Run._make(row) for row in answer]

    def _take(self, runs: Sequence[tuple[_Run, CancelRequest]]) -> None:
        """Bring each run one step further, where it is still as it was read."""
        held = [(run, request) for run, request in runs if run.is_held]
        if rows := [_row(run, request) for run, request in held if run.cancel_at is None]:
            self.database.fetch("ask_runs", rows)
        ending = Ending(CANCELLED)  # its reason is the request's
        claims = [
            Release(run.job_id, run.run_id, run.claim_id or "", run.fence, ending)
            for run, _ in held
            if run.state == CLAIMED
        ]
        release(self.database, self.namespace, claims, Guard.UNSTARTED)
        if free := [(run, request) for run, request in runs if not run.is_held]:
            self._end(free)

    def _end(self, runs: Sequence[tuple[_Run, CancelRequest]]) -> None:
        # One for each job: the one that its row names, if there is one; the fence grows for all.
        by_job = {run.job_id: run for run, _ in sorted(runs, key=_named_last) if run.needs_its_job}
        jobs = sorted((run.job_id, run.run_id, run.job_fence) for run in by_job.values())

        def work(session: Session) -> None:
            passed = {row[0] for row in session.fetch("pass_by_waiting", jobs)} if jobs else set()
            rows = [_row(run, request) for run, request in runs if not run.needs_its_job or run.job_id in passed]
            if rows:
                session.fetch("cancel_runs", rows)
                session.fetch("bump_changes", namespace=self.namespace)

        self.database.write(work)


def _named_last(run: tuple[_Run, CancelRequest]) -> bool:
    return run[0].is_of_its_job


def _row(run: _Run, request: CancelRequest) -> Row:
    reason = after_cancellation(Asked(request.by, request.reason, run.now)).reason
    return run.run_id, run.state, run.fence, request.by, request.reason, reason

"""Write what is submitted without a schedule: a key, a row for its leases and one for its history.

Who finds its key with another run writes nothing. All of a call is one transaction.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from celery_sqlbeat import events
from celery_sqlbeat.errors import RowRefused
from celery_sqlbeat.model.one_offs import ONE_OFF, IdempotencyKey, OneOff, Submitted
from celery_sqlbeat.store.sql.engine import Conflict, Part
from celery_sqlbeat.store.sql.faults import in_halves
from celery_sqlbeat.store.sql.session import Call, Row, Rows

R = TypeVar("R")
_PAGE = 500  # rows: a statement that locks some thousands makes SQL Server lock the whole table


class Statements(Protocol):
    """What runs the store's statements in a transaction: a session, or one of the shop's."""

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        """Run a named block and return what it gives."""

    def fetch_together(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run blocks in their order."""


class OneOffs(Part):
    """The verbs of what is submitted without a schedule."""

    def submit(self, one_offs: Sequence[OneOff], submitter: str, dispatch_seconds: float) -> dict[str, Submitted]:
        """Add one-offs; one that the database refuses is logged, and missing in the answer.

        Where it refuses all of them, its reason is raised.
        """
        answers: dict[str, Submitted] = {}
        refusals: list[RowRefused] = []
        work = partial(add, namespace=self.namespace, submitter=submitter, dispatch_seconds=dispatch_seconds)

        def write(part: Sequence[OneOff]) -> None:
            if len(part) == 1 and part[0].key is None and self.database.does_at_once("submit_at_once"):
                answers.update(self._at_once(part[0], submitter, dispatch_seconds))
                if part[0].run_id in answers:
                    return
            try:
                answers.update(self.database.write(partial(work, one_offs=part)))
            except Conflict:  # somebody asks the same at this moment, and was faster
                answers.update(self.database.write(partial(work, one_offs=part)))

        def pass_by(one_off: OneOff, why: RowRefused) -> None:
            refusals.append(why)
            events.row_refused(action="submit", row=one_off.run_id, error=why)

        in_halves(one_offs, write, pass_by)
        if refusals and not answers:
            raise refusals[0]
        return answers

    def _at_once(self, one_off: OneOff, submitter: str, dispatch_seconds: float) -> dict[str, Submitted]:
        """Add one that has no key; return nothing where it is there already."""
        row = (*_job_row(one_off), one_off.lease_seconds, one_off.max_retries, one_off.max_runtime)
        scope = {"namespace": self.namespace, "submitter": submitter, "dispatch_seconds": dispatch_seconds}
        added = self.database.fetch("submit_at_once", [row], **scope)
        return {run_id: Submitted(run_id, True, due_at, now, fence) for run_id, due_at, fence, now in added}


def add(
    session: Statements, one_offs: Sequence[OneOff], namespace: str, submitter: str, dispatch_seconds: float
) -> dict[str, Submitted]:
    """Add one-offs in the transaction of a session; return which run each stands for."""
    scope = {"namespace": namespace}
    passed = _passed(session, one_offs, scope)
    own = {one_off.run_id: one_off for one_off in one_offs if one_off.run_id not in passed}
    answers: dict[str, Submitted] = {}
    for page in _pages([own[run_id] for run_id in sorted(own)]):
        jobs = [_job_row(one_off) for one_off in page]
        runs = [(o.run_id, o.lease_seconds, o.max_retries, o.max_runtime) for o in page]
        *_, submitted = session.fetch_together(
            [
                Call("add_one_offs", jobs, {**scope, "submitter": submitter, "dispatch_seconds": dispatch_seconds}),
                Call("add_one_off_runs", runs, scope),
                Call("read_submitted", [(o.run_id, o.claim_id) for o in page], scope),
            ]
        )
        for run_id, kind, due_at, fence, now in submitted:
            if kind == ONE_OFF:  # else the id is that of a job's run
                answers[run_id] = Submitted(run_id, True, due_at, now, fence)
    for run_id, before in passed.items():
        first = answers.get(before.run_id)  # of one call, both with one key
        answers[run_id] = before if first is None else before._replace(due_at=first.due_at)
    return answers


def _passed(session: Statements, one_offs: Sequence[OneOff], scope: dict[str, str]) -> dict[str, Submitted]:
    """Take the keys; return what stands for those one-offs whose key is another run's."""
    taken: dict[str, tuple[OneOff, IdempotencyKey]] = {}
    asked: dict[str, str] = {}
    for one_off in one_offs:
        if one_off.key is not None:
            taken.setdefault(one_off.key.text, (one_off, one_off.key))
            asked[one_off.run_id] = one_off.key.text
    passed: dict[str, Submitted] = {}
    # In one order for all, so that no two who ask for the same keys wait for each other.
    for texts in _pages(sorted(taken)):
        keys = [
            (text, o.run_id, o.task_name, key.digest, key.ttl_seconds) for text in texts for o, key in [taken[text]]
        ]
        session.fetch("take_keys", keys, **scope)
    for page in _pages(sorted(asked.items())):
        for run_id, first_id, task_name, digest, due_at, is_own, now in session.fetch("read_keys", page, **scope):
            if not is_own:
                passed[run_id] = Submitted(first_id, False, due_at, now, 0, task_name, digest)
    return passed


def _job_row(new: OneOff) -> Row:
    return new.run_id, new.task_name, new.args, new.kwargs, new.options, new.policies, new.due_at, new.claim_id


def _pages(rows: Sequence[R]) -> Iterator[Sequence[R]]:
    for at in range(0, len(rows), _PAGE):
        yield rows[at : at + _PAGE]

"""Keep the effects of each slot to one, by a table in the shop's database.

A row for the job has the highest fence that has done something here, a row for each slot the
attempt that has done its effects. Which transaction they are in, its caller decides.
"""

from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat.errors import UnusableConnection
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.store.sql.foreign import ForeignSession
from celery_sqlbeat.store.sql.session import sql_folder

_A_FEW = 20  # old rows that a transaction takes away: more than it adds
_OF_THE_JOB = ""


class StoreFacts(NamedTuple):
    """What a task must know of the store that its run is in."""

    store_id: str
    namespace: str
    keep_seconds: float
    """So long after its effects were done a slot is known."""


class GuardedRun(NamedTuple):
    """A run, as the guard knows it."""

    store_id: str
    namespace: str
    job_name: str
    kind: str
    scheduled_for: datetime
    attempt: int
    fence: int
    run_id: str
    is_exclusive: bool
    """Whether no other run of its job may be about."""
    keep_seconds: float

    @property
    def slot(self) -> str:
        """What stands for the slot; a one-off has one alone, and its id is its name."""
        return ONE_OFF if self.kind == ONE_OFF else f"{self.kind} {self.scheduled_for.isoformat()}"


def guard_script(database: str) -> str:
    """Return the script that creates the table of the guard, where it is missing."""
    return (sql_folder(database) / "guard.sql").read_text(encoding="utf-8").rstrip()


def enter(session: ForeignSession, run: GuardedRun) -> int | None:
    """Lock the run's rows; return by which attempt its effects were done, or None.

    Raises FenceLower where a run with a higher fence has been here.
    """
    if run.is_exclusive:
        _enter(session, run, _OF_THE_JOB)
    return _enter(session, run, run.slot)


class FenceLower(Exception):
    """Another run has followed."""


def _enter(session: ForeignSession, run: GuardedRun, slot: str) -> int | None:
    try:
        [(fence, attempt)] = session.fetch(
            "enter_guard",
            store_id=run.store_id,
            namespace=run.namespace,
            job_name=run.job_name,
            slot=slot,
            fence=run.fence,
        )
    except Exception as error:
        if not session.lacks_table(error):
            raise
        raise UnusableConnection(
            "the database has no table SqlbeatGuard: run celery -A app sqlbeat init --guard URL, or let a DBA run what "
            "init --guard URL --sql prints"
        ) from error
    if fence > run.fence:
        raise FenceLower
    return None if attempt is None else int(attempt)


def leave(session: ForeignSession, run: GuardedRun) -> None:
    """Mark the slot as done; in the database of the jobs mark the run, too.

    Raises FenceLower where the run has been taken over.
    """
    session.fetch(
        "leave_guard",
        store_id=run.store_id,
        namespace=run.namespace,
        job_name=run.job_name,
        slot=run.slot,
        attempt=run.attempt,
    )
    session.fetch("purge_guard", keep_seconds=run.keep_seconds, page_size=_A_FEW)
    if _is_of_the_jobs(session, run) and not session.fetch("note_effects", run_id=run.run_id, fence=run.fence):
        raise FenceLower


def _is_of_the_jobs(session: ForeignSession, run: GuardedRun) -> bool:
    # By the catalog first: a failed statement would end the transaction on PostgreSQL.
    return bool(session.fetch("read_migrations_table")) and session.store_id() == run.store_id

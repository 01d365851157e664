"""People and programs that change jobs while they run: through the store, and by hand in SQL."""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

from celery_sqlbeat.api import Handle
from celery_sqlbeat.errors import SqlbeatError
from celery_sqlbeat.model import DeleteJob, JobDraft, NewRun, UpdateJob
from celery_sqlbeat.model.one_offs import CancelRequest
from celery_sqlbeat.store.records import JobQuery, RunQuery
from celery_sqlbeat.store.sql.store import SqlStore
from tests.simulation.beats import Host
from tests.simulation.jobs import spec
from tests.simulation.rows import JobRow
from tests.support.views import AdminView

if TYPE_CHECKING:
    from tests.simulation.world import World


_LOOKS = 5  # whether a job that is to be defined again is gone by now


class Operator(Host):
    """Somebody with an administrator's rights."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "operator")
        self.store = store = SqlStore(self.database(), world.namespace)
        self.admin = AdminView(store)
        self.handle = Handle(world.app, world.settings, store)
        self.handle.jobs._ids = self.ids

    def attempt(self, work: Callable[[], object]) -> None:
        """Do something, and let it be if the database is away."""

        def run() -> None:
            self.world.ledger.did("operator")
            with contextlib.suppress(SqlbeatError):  # somebody will try again, or not
                work()

        self.start(run)

    def kill(self) -> None:
        """People do not crash."""


def pause(operator: Operator, job: JobRow, much: float) -> None:
    """Pause a job, and mostly resume it after a while."""
    operator.handle.jobs.pause(job.job_name)
    if much < 0.9:
        operator.sleep(100.0 * much**3)
        operator.handle.jobs.resume(job.job_name)


def run_now(operator: Operator, job: JobRow, much: float) -> None:
    """Add an extra slot."""
    operator.admin.enqueue([NewRun(operator.ids.run_ids(1)[0], job.id)])


def cancel(operator: Operator, job: JobRow, much: float) -> None:
    """Cancel what runs, or one of the last attempts, whatever has become of it."""
    if much < 0.2:
        operator.admin.cancel(job.job_name)
        return
    runs = operator.admin.runs(RunQuery(job_id=job.id, page_size=4))
    chosen = runs[: 1 + int(much * len(runs))]
    answers = operator.store.cancel([CancelRequest(run.run_id, "an operator", "") for run in chosen])
    for run_id, answer in answers.items():
        operator.world.ledger.acknowledged(run_id, answer)


def delete(operator: Operator, job: JobRow, much: float) -> None:
    """Delete a job, and add another one."""
    operator.admin.write_jobs([DeleteJob(job.job_name, force=much < 0.5)])
    operator.world.add_job()


def redefine(operator: Operator, job: JobRow, much: float) -> None:
    """Delete a job, and define one of the same name, once it is gone."""
    operator.admin.write_jobs([DeleteJob(job.job_name, force=much < 0.7)])
    for _ in range(_LOOKS):
        operator.sleep(20.0 * much**2)
        if all(row.job_name != job.job_name for row in operator.world.ledger.jobs.values()):
            operator.world.ledger.did("redefinition")
            operator.world.add_job(job.job_name)
            return


def replay(operator: Operator, job: JobRow, much: float) -> None:
    """Replay the dead letters."""
    letters = operator.admin.runs(RunQuery(only_dead=True, page_size=100))
    dead = [letter for letter in letters if letter.reason != "replayed"]
    ids = operator.ids.run_ids(len(dead))
    operator.admin.enqueue([NewRun(run_id, one.job_id, one) for run_id, one in zip(ids, dead, strict=True)])


def edit(operator: Operator, job: JobRow, much: float) -> None:
    """Give a job another schedule and other policies."""
    found = operator.admin.jobs(JobQuery(names=[job.job_name])).get(job.job_name)
    if found is None:
        return
    world = operator.world
    edited = spec(Random(f"{job.job_name}/{much}"), job.job_name, world.settings.lock_timeout, world.only_queue)
    first = operator.world.server.clock() + timedelta(seconds=30.0 * much)
    row = edited.columns
    draft = JobDraft(
        job.job_name,
        row["TaskName"],
        row["Schedule"],
        row["TimeZone"],
        None,
        None,
        row["Options"],
        row["Policies"],
        True,
        None,
        first,
        None,
    )
    operator.world.ledger.edits[job.id, found.version + 1] = edited
    operator.admin.write_jobs([UpdateJob(draft, version=found.version, reschedule=True)])


def move(operator: Operator, job: JobRow, much: float) -> None:
    """Write another next run by hand."""
    at = operator.world.server.clock() + timedelta(seconds=120.0 * (much - 0.4))
    operator.world.server.by_hand(operator, "UPDATE Jobs SET NextRunTime = ? WHERE Id = ?", at, job.id)


def unlock(operator: Operator, job: JobRow, much: float) -> None:
    """Unlock a job by hand, whatever runs."""
    operator.world.server.by_hand(operator, "UPDATE Jobs SET LockedBy = NULL WHERE Id = ?", job.id)


ACTIONS = [
    pause,
    pause,
    pause,
    run_now,
    run_now,
    run_now,
    cancel,
    cancel,
    cancel,
    delete,
    redefine,
    redefine,
    replay,
    replay,
    edit,
    move,
    unlock,
]

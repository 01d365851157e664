"""The operations that test_interleavings.py plays against each other, and their initial states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from celery_sqlbeat.model import (
    Claim,
    DeleteJob,
    HeldLease,
    JobDraft,
    JobRecord,
    NewRun,
    PauseJob,
    StartedRun,
    StartRequest,
    UpdateJob,
    lifecycle,
)
from celery_sqlbeat.model.lifecycle import Backoff, Ending, after_ended_lease, after_failure, after_success, released
from celery_sqlbeat.store.sql.store import SqlStore
from tests.contract.stepping import Side
from tests.support.claiming import claim_due
from tests.support.views import AdminView, BeatView, WorkerView
from tests.support.world import DISPATCH, NOON, World

JOB = "job"


@dataclass
class Case:
    """The state that both operations begin in, and what their callers know of it."""

    world: World
    claim: Claim | None = None
    run: StartedRun | None = None
    start_id: str = ""
    ended: Sequence[HeldLease] = ()
    read: JobRecord | None = None

    @property
    def job(self) -> JobRecord:
        """The job as it was read in the beginning."""
        assert self.read is not None
        return self.read


class Actor:
    """One of the two callers: its own session, its own ids."""

    def __init__(self, name: str, side: Side, world: World) -> None:
        store = SqlStore(side.database, world.namespace)
        self.side = side
        self.beat = BeatView(store, f"beat-{name}")
        self.worker = WorkerView(store, f"worker-{name}")
        self.admin = AdminView(store)
        self.planner = world.planner_for()
        self.start_id, self.run_id = world.ids.random_id(), world.ids.random_id()

    def by_hand(self, text: str, *values: object) -> None:
        """Write as an operator does, in a transaction."""
        self.side.database.write(lambda session: cast(Any, session).by_hand(text, values))


Operation = Callable[[Case, Actor], object]


def claim(case: Case, me: Actor) -> object:
    """Return what one beat's look for due jobs gives."""
    found = claim_due(me.beat, me.planner, 10, DISPATCH)
    return [(one.run_id, one.fence, one.slot) for one in found.claims]


def start(case: Case, me: Actor, start_id: str | None = None, celery_retries: int = 0) -> object:
    """Deliver the message to a worker."""
    return me.worker.start([_request(case, start_id or me.start_id, celery_retries)])


def start_and_finish(case: Case, me: Actor) -> object:
    """Let a worker take the message and end its run at once."""
    started = me.worker.start([_request(case, me.start_id, 0)])
    return started, [me.worker.finish([(run, after_success())]) for run in started.values()]


def finish(ending: Ending) -> Operation:
    """Let a worker write an outcome."""
    return lambda case, me: me.worker.finish([(_run(case), ending)])


def reclaim(case: Case, me: Actor) -> object:
    """Let a beat take the leases that it has seen end."""
    return me.beat.reclaim([(lease, _after(lease)) for lease in case.ended if isinstance(_after(lease), Ending)])


def postpone_start_deadline(case: Case, me: Actor) -> object:
    """Let a beat publish again what it has seen waiting for too long."""
    return me.beat.postpone_start_deadline([(lease, 240.0) for lease in case.ended])


def update(case: Case, me: Actor) -> object:
    """Let an administrator change the job that was read."""
    draft = JobDraft(JOB, "app.other", "every 30s", None, None, None, None, None, True, None, NOON, None)
    return me.admin.write_jobs([UpdateJob(draft, version=case.job.version, reschedule=True)])


def _request(case: Case, start_id: str, celery_retries: int) -> StartRequest:
    claim = case.claim
    assert claim is not None
    return StartRequest(claim.run_id, claim.claim_id, claim.fence, start_id, celery_retries)


def _claimed(case: Case) -> Claim:
    assert case.claim is not None
    return case.claim


def _run(case: Case) -> StartedRun:
    assert case.run is not None
    return case.run


def _after(lease: HeldLease) -> Any:
    return after_ended_lease(lifecycle.ExpiredLease.of(lease), 5, can_republish=True)


ANY: dict[str, Operation] = {
    "claim": claim,
    "release_orphan_locks": lambda case, me: me.beat.release_orphan_locks(120),
    "pause": lambda case, me: me.admin.write_jobs([PauseJob(JOB, "stop")]),
    "update": update,
    "cancel": lambda case, me: me.admin.cancel(JOB),
    "delete": lambda case, me: me.admin.write_jobs([DeleteJob(JOB)]),
    "add_slot": lambda case, me: me.admin.enqueue([NewRun(me.run_id, case.job.job_id)]),
    "set NextRunTime": lambda case, me: me.by_hand(
        "UPDATE Jobs SET NextRunTime = $1 WHERE Id = $2", NOON - timedelta(seconds=7), case.job.job_id
    ),
    "unlock": lambda case, me: me.by_hand("UPDATE Jobs SET LockedBy = NULL WHERE Id = $1", case.job.job_id),
}
CLAIMED: dict[str, Operation] = {
    "mark_published": lambda case, me: me.beat.mark_published([(_claimed(case), 120.0)]).done,
    "mark_dispatched": lambda case, me: me.beat.mark_dispatched([_claimed(case)]).done,
    "release_claims": lambda case, me: me.beat.release_claims([_claimed(case)], "no broker").done,
    "start": start,
    "start_and_finish": start_and_finish,
}
STARTED: dict[str, Operation] = {
    "start again": lambda case, me: start(case, me, case.start_id),
    "start retry": lambda case, me: start(case, me, None, 1),
    "extend": lambda case, me: me.worker.extend([(_run(case), 300.0)]),
    "succeed": finish(after_success()),
    "fail": finish(after_failure(0, 3, Backoff(), lambda: 0.0, "Boom")),
    "give up": finish(after_failure(3, 3, Backoff(), lambda: 0.0, "Boom")),
    "un-start": finish(released("shut down")),
}
ENDED: dict[str, Operation] = {"reclaim": reclaim, "postpone_start_deadline": postpone_start_deadline}


def _set(world: World, **columns: object) -> None:
    names = ", ".join(f"{name} = ?" for name in columns)
    world.sql(f"UPDATE Jobs SET {names} WHERE Namespace = ?", *columns.values(), world.namespace)


def due(world: World) -> Case:
    return Case(world)


def stray(world: World) -> Case:
    _set(world, LockedBy="maintenance", LockedAt=NOON - timedelta(hours=1))
    return Case(world)


def claimed(world: World) -> Case:
    return Case(world, world.claim_one())


def published(world: World) -> Case:
    case = claimed(world)
    world.publish(_claimed(case))
    return case


def running(world: World) -> Case:
    return _begun(published(world))


def _begun(case: Case) -> Case:
    request = case.world.request(_claimed(case))
    case.run, case.start_id = case.world.worker.start([request])[request.run_id], request.start_id
    return case


def dispatch_ended(world: World) -> Case:
    case = claimed(world)
    world.later(DISPATCH + 1)
    return case


def queued_ended(world: World) -> Case:
    case = published(world)
    world.later(500)
    return case


def lease_ended(world: World) -> Case:
    case = running(world)
    world.later(500)
    return case


def retry_due(world: World) -> Case:
    case = running(world)
    world.finish(_run(case), after_failure(0, 3, Backoff(), lambda: 0.0, "Boom"))
    world.later(1)
    return case


def dispatched(world: World) -> Case:
    case = claimed(world)
    world.beat.mark_dispatched([_claimed(case)])
    world.later(61)
    return case


def outbox(world: World) -> Case:
    _set(world, NextRunTime=NOON + timedelta(hours=1))
    world.add_slot(world.job(JOB)["id"])
    world.later(1)
    return Case(world)


def overlap_claimed(world: World) -> Case:
    _set(world, Policies='{"overlap": "allow"}')
    return claimed(world)


def overlap_dispatched(world: World) -> Case:
    _set(world, Policies='{"overlap": "allow"}')
    return dispatched(world)


def overlap_running(world: World) -> Case:
    return _begun(overlap_dispatched(world))


def overlap_ended(world: World) -> Case:
    case = overlap_running(world)
    world.later(500)
    return case


# In a state that differs from another one only by the clock, one of the two is an operation that
# looks at the clock.
STATES: list[tuple[Callable[[World], Case], dict[str, Operation]]] = [
    (due, ANY),
    (stray, ANY),
    (outbox, ANY),
    (claimed, ANY | CLAIMED),
    (dispatch_ended, ANY | CLAIMED | ENDED),
    (published, ANY | CLAIMED),
    (queued_ended, ANY | CLAIMED | ENDED),
    (running, ANY | CLAIMED | STARTED),
    (lease_ended, ANY | CLAIMED | STARTED | ENDED),
    (retry_due, ANY | CLAIMED | STARTED),
    (dispatched, ANY | CLAIMED),
    (overlap_claimed, ANY | CLAIMED),
    (overlap_dispatched, ANY | CLAIMED),
    (overlap_running, ANY | CLAIMED | STARTED),
    (overlap_ended, ANY | CLAIMED | STARTED | ENDED),
]

"""Whoever acts between another one's read and write is as if he had come first.

Each verb is interrupted by each other one, in each situation of a job. What the place then holds,
and what both answer, is what it would be had the second one acted before the first: nothing is
lost, nothing done twice, and no condition holds for a row that has changed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import (
    Claim,
    DeleteJob,
    DueBatch,
    HeldLease,
    JobDraft,
    JobRecord,
    NewRun,
    PauseJob,
    Plan,
    ReplaceableRun,
    ResumeJob,
    RunRecord,
    StartedRun,
    Unbegun,
    UpdateJob,
)
from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    DISPATCHED,
    RETRY,
    Ending,
    after_lost_lease,
    after_success,
    released,
)
from celery_sqlbeat.model.one_offs import CancelRequest, IdempotencyKey, OneOff
from celery_sqlbeat.store.keyvalue.store import KeyValueStore
from celery_sqlbeat.store.records import Guard, KeptRun, RunNote, RunQuery
from tests.unit.store.keyvalue.steps import (
    DISPATCH,
    LEASE,
    NOON,
    OVERLAP,
    REPLACE,
    Interrupted,
    Steps,
    release,
    request,
)

ONE, TWO = "00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002"
RETRIED = Ending(RETRY, "failed", 5.0, 1, 0, "boom")


@dataclass
class Situation:
    """A job at some point, and what beats, workers and administrators know of it."""

    steps: Steps
    job: JobRecord
    due: tuple[DueBatch, Plan]
    claims: list[Claim] = field(default_factory=list)
    runs: list[StartedRun] = field(default_factory=list)
    leases: list[HeldLease] = field(default_factory=list)
    replaceable: list[ReplaceableRun] = field(default_factory=list)
    letters: list[RunRecord] = field(default_factory=list)

    def run_ids(self) -> list[str]:
        """Return the ids of all runs that there are."""
        return [run.run_id for run in self.steps.store.runs(RunQuery())]

    @classmethod
    def of(cls, steps: Steps, claims: list[Claim], runs: list[StartedRun]) -> "Situation":
        """Ask what there is to know."""
        expired = steps.store.expired(100)
        letters = steps.store.runs(RunQuery(only_dead=True))
        return cls(steps, steps.job(), steps.due(), claims, runs, expired.leases, expired.replaceable, letters)


def idle() -> Situation:
    steps = Steps()
    steps.add()
    return Situation.of(steps, [], [])


def paused() -> Situation:
    steps = Steps()
    steps.add()
    steps.store.write_jobs([PauseJob("job", "by hand")])
    return Situation.of(steps, [], [])


def extra() -> Situation:
    steps = Steps()
    steps.enqueue(steps.add(next_run_time=None, start_at=NOON, enabled=True))
    return Situation.of(steps, [], [])


def claimed(policies: str | None = None) -> Situation:
    steps = Steps()
    steps.add(policies=policies)
    return Situation.of(steps, [steps.claim()], [])


def published() -> Situation:
    steps = Steps()
    steps.add()
    return Situation.of(steps, [steps.published()], [])


def unstarted_in_time() -> Situation:
    steps = Steps()
    steps.add()
    claim = steps.published()
    steps.clock.later(2 * LEASE)
    return Situation.of(steps, [claim], [])


def running(policies: str | None = None, seconds: float = 0.0) -> Situation:
    steps = Steps()
    steps.add(policies=policies)
    claim = steps.published()
    run = steps.begin(claim)
    steps.clock.later(seconds)
    return Situation.of(steps, [claim], [run])


def overlapping(seconds: float = 0.0) -> Situation:
    steps = Steps()
    steps.add(policies=OVERLAP)
    claim = steps.claim()
    steps.store.finish([release(claim, Ending(DISPATCHED))], Guard.UNSTARTED)
    run = steps.begin(claim)
    steps.clock.later(seconds)
    return Situation.of(steps, [claim], [run])


def begun_before_its_beat_said_so(seconds: float = 0.0) -> Situation:
    steps = Steps()
    steps.add(policies=OVERLAP)
    claim = steps.claim()
    run = steps.begin(claim)
    steps.clock.later(seconds)
    return Situation.of(steps, [claim], [run])


def never_started() -> Situation:
    steps = Steps()
    steps.add()
    claim = steps.published()
    steps.store.finish([release(claim, Ending(DISPATCHED, "never started"))], Guard.UNSTARTED)
    return Situation.of(steps, [claim], [])


def fired_and_forgotten() -> Situation:
    steps = Steps()
    steps.add()
    claim = steps.claim()
    steps.store.finish([release(claim, Ending(DISPATCHED))], Guard.UNSTARTED)
    return Situation.of(steps, [claim], [])


def waiting_for_its_retry() -> Situation:
    steps = Steps()
    steps.add()
    run = steps.running()
    steps.store.finish([release(run, RETRIED)])
    steps.clock.later(10)
    return Situation.of(steps, [], [run])


def dead() -> Situation:
    steps = Steps()
    steps.add()
    run = steps.running()
    steps.store.finish([release(run, Ending("dlq", "retries exhausted", None, 1))])
    return Situation.of(steps, [], [run])


def one_off(run_id: str = ONE, claim_id: str | None = None) -> OneOff:
    """Return a one-off; all that are submitted here have one key."""
    key = IdempotencyKey("order", "digest", 3600.0)
    return OneOff(run_id, "app.once", None, None, None, None, None, claim_id, LEASE, 3, None, key)


def beside_an_idle_job() -> Steps:
    steps = Steps()
    steps.add(next_run_time=NOON + timedelta(days=1))
    return steps


def one_off_waits() -> Situation:
    steps = beside_an_idle_job()
    steps.store.submit([one_off()], "submitter", DISPATCH)
    return Situation.of(steps, [], [])


def one_off_claimed() -> Situation:
    before = one_off_waits()
    return Situation.of(before.steps, [before.steps.claim()], [])


def one_off_not_published_by_its_submitter() -> Situation:
    steps = beside_an_idle_job()
    steps.store.submit([one_off(claim_id="11111111-1111-4111-8111-111111111111")], "submitter", DISPATCH)
    steps.clock.later(2 * DISPATCH)
    return Situation.of(steps, [], [])


def one_off_runs(seconds: float = 0.0) -> Situation:
    steps = one_off_waits().steps
    claim = steps.published()
    run = steps.begin(claim)
    steps.clock.later(seconds)
    return Situation.of(steps, [claim], [run])


def one_off_ended(ending: Ending) -> Situation:
    steps = one_off_waits().steps
    run = steps.running()
    steps.store.finish([release(run, ending)])
    steps.clock.later(10)
    return Situation.of(steps, [], [run])


def asked_to_stop(before: Situation) -> Situation:
    before.steps.store.cancel([CancelRequest(run.run_id, "bob", "first") for run in before.runs])
    return before


SITUATIONS: dict[str, Callable[[], Situation]] = {
    "idle": idle,
    "paused": paused,
    "an extra slot waits": extra,
    "claimed": claimed,
    "claimed to overlap": lambda: claimed(OVERLAP),
    "published": published,
    "not started in time": unstarted_in_time,
    "running": running,
    "running with an ended lease": lambda: running(seconds=2 * LEASE),
    "running when its next slot has come": lambda: running(REPLACE, 61.0),
    "overlapping": overlapping,
    "overlapping with an ended lease": lambda: overlapping(2 * LEASE),
    "begun before its beat said so": begun_before_its_beat_said_so,
    "begun before its beat said so, with an ended lease": lambda: begun_before_its_beat_said_so(2 * LEASE),
    "never started": never_started,
    "fired and forgotten": fired_and_forgotten,
    "waiting for its retry": waiting_for_its_retry,
    "dead": dead,
    "asked to stop": lambda: asked_to_stop(running()),
    "asked to stop, with an ended lease": lambda: asked_to_stop(running(seconds=2 * LEASE)),
    "overlapping and asked to stop": lambda: asked_to_stop(overlapping()),
    "a one-off waits": one_off_waits,
    "a one-off is claimed": one_off_claimed,
    "a one-off is not published by its submitter": one_off_not_published_by_its_submitter,
    "a one-off runs": one_off_runs,
    "a one-off runs with an ended lease": lambda: one_off_runs(2 * LEASE),
    "a one-off waits for its retry": lambda: one_off_ended(RETRIED),
    "a one-off is dead": lambda: one_off_ended(Ending("dlq", "retries exhausted", None, 1)),
}

Step = Callable[[KeyValueStore, Situation], Any]
CANCEL, LOST = Ending(CANCELLED, "cancelled by hand"), after_lost_lease(0, 5)


def draft(job: JobRecord) -> JobDraft:
    return JobDraft(**{name: getattr(job, name) for name in JobDraft._fields} | {"enabled": bool(job.enabled)})


def starter(start_id: str, celery_retries: int = 0) -> Step:
    def start(store: KeyValueStore, at: Situation) -> Any:
        return store.start([request(claim, start_id, celery_retries) for claim in at.claims], f"worker of {start_id}")

    return start


STEPS: dict[str, Step] = {
    "claims": lambda store, at: store.claim(*at.due, "beat-2", 15.0),
    "marks as published": lambda store, at: store.mark_published([(claim, LEASE) for claim in at.claims]),
    "fires and forgets": lambda store, at: store.finish(
        [release(claim, Ending(DISPATCHED)) for claim in at.claims], Guard.UNSTARTED
    ),
    "gives back": lambda store, at: store.finish(
        [release(claim, released("no broker", 1.0)) for claim in at.claims], Guard.UNSTARTED
    ),
    "starts": starter("start-1"),
    "asks to start again": starter("start-2"),
    "starts a later retry of Celery's": starter("start-3", 1),
    "extends": lambda store, at: store.extend([(run, LEASE) for run in at.runs]),
    "finishes": lambda store, at: store.finish([release(run, after_success()) for run in at.runs]),
    "fails": lambda store, at: store.finish([release(run, RETRIED) for run in at.runs]),
    "cancels": lambda store, at: store.finish([release(held, CANCEL) for held in at.claims[:1]]),
    "reclaims": lambda store, at: store.finish(
        [release(one, after_lost_lease(0, 5)) for one in at.leases], Guard.EXPIRED
    ),
    "lets go": lambda store, at: store.finish([release(one, Ending(DISPATCHED)) for one in at.leases], Guard.EXPIRED),
    "republishes": lambda store, at: store.postpone([(one, LEASE) for one in at.leases], "beat-3"),
    "waits on": lambda store, at: store.postpone(
        [Unbegun(claim.run_id, claim.claim_id, claim.fence, 0) for claim in at.claims], "worker-2"
    ),
    "replaces": lambda store, at: store.finish(
        [release(run, Ending(CANCELLED, "replaced")) for run in at.replaceable], Guard.REPLACEABLE
    ),
    "keeps": lambda store, at: store.postpone([KeptRun(run, None) for run in at.replaceable], "beat-4"),
    "notes": lambda store, at: store.note_runs(
        [RunNote(claim.run_id, claim.claim_id, "{}", True) for claim in at.claims]
    ),
    "pauses": lambda store, at: store.write_jobs([PauseJob("job", "by hand")]),
    "resumes": lambda store, at: store.write_jobs([ResumeJob("job", version=at.job.version, next_run_time=NOON)]),
    "changes": lambda store, at: store.write_jobs([UpdateJob(draft(at.job), version=at.job.version, reschedule=True)]),
    "deletes": lambda store, at: store.write_jobs([DeleteJob("job")]),
    "deletes by force": lambda store, at: store.write_jobs([DeleteJob("job", force=True)]),
    "adds a slot": lambda store, at: store.enqueue([NewRun("ffffffff-0000-7000-8000-000000000001", at.job.job_id)]),
    "replays": lambda store, at: store.enqueue(
        [NewRun("ffffffff-0000-7000-8000-000000000002", letter.job_id, letter) for letter in at.letters]
    ),
    "asks to stop": lambda store, at: store.cancel(
        [CancelRequest(run_id, "ann", "wrong") for run_id in dict.fromkeys(at.run_ids())]
    ),
    "submits": lambda store, at: store.submit([one_off()], "submitter", DISPATCH),
    "submits and claims": lambda store, at: store.submit(
        [one_off(TWO, "22222222-2222-4222-8222-222222222222")], "submitter-2", DISPATCH
    ),
    "releases orphans": lambda store, at: store.release_orphan_locks(LEASE),
}


def pairs() -> Iterator[Any]:
    for situation in SITUATIONS:
        for step in STEPS:
            yield pytest.param(situation, step, id=f"{situation}: one {step}")


@pytest.mark.parametrize(("situation", "step"), list(pairs()))
def test_a_verb_is_as_if_the_other_one_had_come_first(situation: str, step: str) -> None:
    before = SITUATIONS[situation]()
    for other in STEPS:
        serial = before.steps.copy()
        others_answer = STEPS[other](serial.store, before)
        own_answer = STEPS[step](serial.store, before)

        mixed = before.steps.copy()
        interrupted, answers = Interrupted(mixed.place), list[Any]()

        def interrupt(mixed: Steps = mixed, other: str = other, answers: list[Any] = answers) -> None:
            answers.append(STEPS[other](mixed.store, before))

        interrupted.actions.append(interrupt)
        answer = STEPS[step](KeyValueStore(interrupted), before)
        if not answers:  # it had nothing to write
            continue
        assert (answer, answers) == (own_answer, [others_answer]), other
        assert mixed.rows() == serial.rows(), other


def test_every_situation_is_one_in_which_somebody_can_act() -> None:
    """Else the interleavings would prove nothing."""
    acting = {
        name: {step for step in STEPS if has_effect(situation(), STEPS[step])} for name, situation in SITUATIONS.items()
    }
    assert min(len(steps) for steps in acting.values()) >= 5, acting
    assert set().union(*acting.values()) >= STEPS.keys() - {"releases orphans"}


def has_effect(before: Situation, step: Step) -> bool:
    steps = before.steps.copy()
    step(steps.store, before)
    return steps.rows() != before.steps.rows()

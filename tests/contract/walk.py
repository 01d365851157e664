"""Random steps of beats, workers and administrators, taken on two stores."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from operator import attrgetter
from random import Random
from typing import Any

from celery_sqlbeat.model import (
    AddJob,
    CancelRun,
    Claim,
    DeleteIdleJob,
    DeleteJob,
    DueBatch,
    HeldLease,
    JobDraft,
    JobWrite,
    NewRun,
    PauseJob,
    QuarantineJob,
    RepairJob,
    ReplaceableRun,
    ResumeJob,
    StartedRun,
    StartRequest,
    Unbegun,
    UpdateJob,
)
from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    DISPATCHED,
    DLQ,
    NEVER_STARTED,
    REPLACED_REASON,
    RETRY,
    SKIPPED,
    Ending,
    ExpiredLease,
    Republish,
    after_ended_lease,
    after_success,
    released,
)
from celery_sqlbeat.model.one_offs import CancelRequest, IdempotencyKey, OneOff
from celery_sqlbeat.store.purges import OldKeys, OldRuns
from celery_sqlbeat.store.records import (
    Expired,
    Guard,
    KeptRun,
    Release,
    RunNote,
    RunQuery,
)
from celery_sqlbeat.testing.claims import claim_of
from tests.contract.beside import BY_RUN, LEASE, Side, Sides

NAMES = [f"job-{number}" for number in range(6)]
POLICIES = [None, *(f'{{"overlap": "{kind}"}}' for kind in ("allow", "replace", "queue"))]
POLICIES += ['{"cadence": "fixed_delay"}', '{"overlap": "allow", "max_parallel": 2}', '{"misfire": "skip"}']
SCHEDULES = ["every 60s", "every 30s", "every 90s", "cron */2 * * * *", None]
PAUSES = [0.001, 1.0, 10.0, 30.0, 61.0, 61.0, 130.0, 3700.0]  # seconds
LET_GO = [
    Ending(DISPATCHED),
    Ending(DISPATCHED, NEVER_STARTED),
    Ending(SKIPPED, "too late"),
    Ending(CANCELLED, "by a hook"),
    Ending(RETRY, "cannot be published", 2.0, 1),
    Ending(DLQ, "cannot be published", None, 1),
    released("no broker"),
    released("no broker", 5.0),
]
ENDINGS = [
    after_success(),
    Ending(RETRY, "failed", 0.0, 1, 0, "boom"),
    Ending(RETRY, "failed", 90.0, 1, 0, "boom"),
    Ending(RETRY, "worker stopped", 0.0),
    Ending(DLQ, "retries exhausted", None, 1),
    Ending(CANCELLED, "revoked"),
    Ending(SKIPPED, "expired"),
    Ending(DISPATCHED, "left"),
    released("worker stopped"),
]
MAX_LOST = 2
OFTEN = 12 * ["they_claim", "they_start", "they_finish"] + 6 * ["they_wait", "they_mark", "they_sweep", "they_add"]
OFTEN += 4 * ["they_submit", "they_cancel_a_run"]


class Walk(Sides):
    """Steps that are taken on both sides; each may be the next one."""

    def step(self) -> None:
        """Take a step, and compare everything that can be seen afterwards."""
        steps = sorted(name for name in vars(Walk) if name.startswith("they_"))
        getattr(self, self.random.choice([*steps, *OFTEN]))()
        self.both(Side.seen, "what is seen")

    # Beats

    def they_wait(self) -> None:
        self.let_pass(self.random.choice(PAUSES))

    def they_claim(self) -> None:
        due = self.both(_due, "what is due")
        plans = [side.planner(batch) for side, batch in zip(self.sides, due, strict=True)]
        if self.random.random() < 0.15:
            self.they_wait()
        pairs = dict(zip(map(id, self.sides), zip(due, plans, strict=True), strict=True))

        def claim(side: Side) -> Any:
            claimed = side.store.claim(*pairs[id(side)], "beat", 30.0)
            claimed.claims.sort(key=BY_RUN)
            claimed.gaps.sort(key=BY_RUN)
            side.claims = [*side.claims, *claimed.claims][-8:]
            return claimed

        self.both(claim, "a claim")

    def they_mark(self) -> None:
        at = self.shares()
        self.both(lambda s: s.store.mark_published([(c, LEASE) for c in self.some(s, "claims", at)]), "a mark")

    def they_let_go(self) -> None:
        at, ending = self.shares(), self.random.choice(LET_GO)
        self.both(
            lambda s: s.store.finish([_release(c, ending) for c in self.some(s, "claims", at)], Guard.UNSTARTED),
            "a release",
        )

    def they_sweep(self) -> None:
        expired = dict(zip(map(id, self.sides), self.both(_expired, "what has ended"), strict=True))
        if self.random.random() < 0.3:
            self.they_wait()
        seed = self.random.random()

        def sweep(side: Side) -> list[Any]:
            chance, (leases, replaceable) = Random(seed), expired[id(side)]
            answers = [_dealt_with(side, lease) for lease in leases]
            for run in replaceable:
                if chance.random() < 0.5:
                    ending = Ending(CANCELLED, REPLACED_REASON)
                    answers.append(side.store.finish([_release(run, ending)], Guard.REPLACEABLE))
                else:
                    until = chance.choice([None, self.now + timedelta(seconds=60)])
                    answers.append(side.store.postpone([KeptRun(run, until)], "beat"))
            return answers

        self.both(sweep, "a sweep")

    def they_release_orphans(self) -> None:
        self.both(lambda s: s.store.release_orphan_locks(LEASE), "orphans")

    def they_note(self) -> None:
        at, ends = self.shares(), self.random.random() < 0.5

        def note(side: Side) -> Any:
            claims = self.some(side, "claims", at)
            notes = [
                RunNote(c.run_id, results_ended=True) if ends else RunNote(c.run_id, c.claim_id, "{}") for c in claims
            ]
            return side.store.note_runs(notes)

        self.both(note, "a note")

    # Workers

    def they_start(self) -> None:
        at, retries = self.shares(), self.random.choice([0, 0, 1])
        start_ids = [self.ids.random_id() for _ in NAMES]

        def start(side: Side) -> Any:
            claims = zip(self.some(side, "claims", at), start_ids, strict=False)
            asked = [StartRequest(c.run_id, c.claim_id, c.fence, start_id, retries) for c, start_id in claims]
            side.requests += asked
            return _started(side, asked)

        self.both(start, "a start")

    def they_ask_again(self) -> None:
        at, forged = self.random.random(), self.random.random() < 0.2

        def ask(side: Side) -> Any:
            asked = side.requests[int(at * len(side.requests)) :][:1]
            return _started(side, [request._replace(fence=request.fence + forged) for request in asked])

        self.both(ask, "a question that is asked again")

    def they_extend(self) -> None:
        at = self.shares()
        self.both(lambda s: s.store.extend([(run, LEASE) for run in self.some(s, "runs", at)]), "an extension")

    def they_finish(self) -> None:
        at, ending = self.shares(), self.random.choice(ENDINGS)
        self.let_pass(0.000_002)  # nor is a retry due when such a slot is
        self.both(lambda s: s.store.finish([_release(run, ending) for run in self.some(s, "runs", at)]), "an end")

    def they_wait_on(self) -> None:
        at = self.shares()

        def wait_on(side: Side) -> Any:
            claims = self.some(side, "claims", at)
            return side.store.postpone([Unbegun(c.run_id, c.claim_id, c.fence, 0) for c in claims], "worker")

        self.both(wait_on, "a message that waits")

    # Administrators

    def draft(self) -> JobDraft:
        at = self.random.choice(
            [None, *[self.now + timedelta(seconds=self.random.randrange(-300, 100)) for _ in "123"]]
        )
        schedule, policies = self.random.choice(SCHEDULES), self.random.choice(POLICIES)
        enabled, timeout = self.random.random() < 0.9, self.random.choice([None, None, 1])
        name = self.random.choice(NAMES)
        return JobDraft(name, "app.task", schedule, None, None, None, None, policies, enabled, None, at, timeout)

    def write(self, make: Callable[[Side], JobWrite | None], what: str) -> None:
        """Write a job on both sides, where it can be made of what is there."""

        def write(side: Side) -> Any:
            made = make(side)
            return None if made is None else side.store.write_jobs([made])[:2]

        self.both(write, what)

    def they_add(self) -> None:
        draft = self.draft()
        self.write(lambda _: AddJob(draft), "an addition")

    def they_change(self) -> None:
        draft, behind = self.draft(), self.random.choice([0, 0, 1])
        reschedules, enabled = self.random.random() < 0.5, self.random.choice([None, None, True, True, False])

        def update(side: Side) -> JobWrite | None:
            job = side.job(draft.job_name)
            return job and UpdateJob(draft, version=job.version - behind, reschedule=reschedules, enabled=enabled)

        self.write(update, "a change")

    def they_pause(self) -> None:
        name = self.random.choice(NAMES)
        if self.random.random() < 0.3:
            self.write(lambda _: PauseJob(name, "by hand"), "a pause")

    def they_resume(self) -> None:
        name, at, finished = self.random.choice(NAMES), self.draft().next_run_time, self.random.random() < 0.2

        def resume(side: Side) -> JobWrite | None:
            job = side.job(name)
            return job and ResumeJob(name, version=job.version, next_run_time=at, finished=finished, fence=job.fence)

        self.write(resume, "a resumption")

    def they_delete(self) -> None:
        name, force = self.random.choice(NAMES), self.random.random() < 0.5
        if self.random.random() < 0.2:
            self.write(lambda _: DeleteJob(name, force=force), "a deletion")

    def they_cancel(self) -> None:
        name = self.random.choice(NAMES)
        self.write(lambda _: CancelRun(name, "by hand"), "a cancellation")

    def they_repair(self) -> None:
        name, at = self.random.choice(NAMES), self.now + timedelta(seconds=5)
        sets_aside = self.random.random() < 0.3

        def repair(side: Side) -> JobWrite | None:
            job = side.job(name)
            if job is None:
                return None
            if job.delete_requested:
                return DeleteIdleJob(name, job.job_id)
            if sets_aside:
                return QuarantineJob(name, job.job_id, job.fence, job.version, "wrong")
            return (
                RepairJob(name, job.job_id, job.fence, job.version, at, None)
                if job.quarantine or not job.next_run_time
                else None
            )

        self.write(repair, "a repair")

    def they_add_a_slot(self) -> None:
        name, run_id = self.random.choice(NAMES), self.ids.run_ids(1)[0]
        self.let_pass(0.000_002)  # no two extra slots are at one instant

        def enqueue(side: Side) -> Any:
            job = side.job(name)
            return job and side.store.enqueue([NewRun(run_id, job.job_id)])

        self.both(enqueue, "an extra slot")

    # Whoever submits without a schedule, and whoever cancels

    def they_submit(self) -> None:
        ids = [self.ids.run_ids(1)[0] for _ in range(self.random.choice([1, 1, 3]))]
        claim_ids = self.ids.claim_ids(len(ids))
        one_offs = [self.one_off(*both) for both in zip(ids, claim_ids, strict=True)]
        for _ in range(self.random.choice([1, 1, 2])):  # an answer may be lost
            self.submit(one_offs, "a submission")

    def one_off(self, run_id: str, claim_id: str) -> OneOff:
        chance = self.random
        ahead = chance.choice([None, None, -5.0, 20.0, 100.0])
        due_at = None if ahead is None else self.now + timedelta(seconds=ahead)
        key = IdempotencyKey(f"key-{chance.randrange(3)}", chance.choice("ab"), chance.choice([5.0, 300.0]))
        policies = chance.choice([None, None, '{"overlap": "allow"}', '{"max_retries": 0}'])
        plain = OneOff(run_id, "app.once", "[1]", None, None, policies, due_at, key=chance.choice([None, None, key]))
        is_claimed = ahead is None and chance.random() < 0.5
        return plain._replace(claim_id=claim_id, lease_seconds=LEASE, max_retries=2) if is_claimed else plain

    def submit(self, one_offs: Sequence[OneOff], what: str) -> None:
        def submit(side: Side) -> Any:
            answers = side.store.submit(one_offs, "submitter", 30.0)
            mine = [(one_off, answers[one_off.run_id]) for one_off in one_offs if answers[one_off.run_id].fence]
            side.claims = [*side.claims, *(claim_of(*pair) for pair in mine)][-8:]
            return answers

        self.both(submit, what)

    def they_cancel_a_run(self) -> None:
        at = [self.random.random() ** 2 for _ in range(self.random.choice([1, 1, 2]))]

        def cancel(side: Side) -> Any:
            runs = side.store.runs(RunQuery())
            chosen = {runs[int(share * len(runs))].run_id for share in at if runs}
            return side.store.cancel([CancelRequest(run_id, "ann", "wrong") for run_id in sorted(chosen)])

        self.both(cancel, "a cancellation of runs")

    def they_forget(self) -> None:
        keep = self.random.choice([0.0, 100.0, 1000.0])
        if self.random.random() < 0.3:
            self.both(partial(_purged, keep_seconds=keep), "a clean-up")
        self.both(lambda s: s.store.purge(OldKeys()).rows, "a clean-up of keys")

    def they_replay(self) -> None:
        at, run_id = self.random.random(), self.ids.run_ids(1)[0]

        def replay(side: Side) -> Any:
            letters = side.store.runs(RunQuery(only_dead=True))
            letter = letters[int(at * len(letters))] if letters else None
            return letter and side.store.enqueue([NewRun(run_id, letter.job_id, letter)])

        self.both(replay, "a replay")


def _release(held: Claim | StartedRun | HeldLease | ReplaceableRun, ending: Ending) -> Release:
    retries = held.celery_retries if isinstance(held, StartedRun) else None
    return Release(held.job_id, held.run_id, held.claim_id, held.fence, ending, retries)


def _purged(side: Side, keep_seconds: float) -> int:
    """Delete old runs; what nobody knows any more is not noted."""
    rows = side.store.purge(OldRuns(keep_seconds)).rows
    known = {run.run_id for run in side.store.runs(RunQuery())}
    side.claims = [claim for claim in side.claims if claim.run_id in known]
    return rows


def _due(side: Side) -> DueBatch:
    due = side.store.due(50)
    return due._replace(jobs=sorted(due.jobs, key=attrgetter("job_name")))


def _expired(side: Side) -> Expired:
    expired = side.store.expired(50)
    return Expired(
        sorted(expired.leases, key=lambda lease: (lease.run_id, lease.task_name is None)),
        sorted(expired.replaceable, key=BY_RUN),
    )


def _dealt_with(side: Side, lease: HeldLease) -> Any:
    """Do what a beat does about a lease that has ended."""
    decision = after_ended_lease(ExpiredLease.of(lease), MAX_LOST, can_republish=True)
    if isinstance(decision, Republish):
        return side.store.postpone([(lease, decision.queued_seconds)], "beat")
    return side.store.finish([_release(lease, decision)], Guard.EXPIRED)


def _started(side: Side, asked: Sequence[StartRequest]) -> Any:
    answers = side.store.start(asked, "worker")
    begun = sorted((answer for answer in answers.values() if isinstance(answer, StartedRun)), key=BY_RUN)
    side.runs = [*side.runs, *begun][-8:]
    return answers

"""Random walks of beats, workers and operators, against each database and a model of the leases.

The model is told only the answers of the store. It predicts each of them, and every guarantee is
checked after each step. `SQLBEAT_TEST_SEED` repeats a walk; CI always takes the same one.
"""

import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import tests.support.hypothesis_profile  # noqa: F401  # loads it
from celery_sqlbeat.model import Claim, HeldLease, NewRun, StartedRun, StartRequest, lifecycle
from celery_sqlbeat.model.lifecycle import Backoff, Ending, Republish, after_failure, after_lost_lease, released
from tests.contract.conftest import Place
from tests.support.claiming import claim_due
from tests.support.views import BeatView, WorkerView
from tests.support.world import DISPATCH, LEASE, NOON, OVERLAP, World, as_instant

EXAMPLES = {"sqlite": 150, "postgresql": 40, "mysql": 30, "mssql": 20}
STEPS = 50
MAX_RETRIES = 2
MAX_LOST = 2
MINUTE = timedelta(minutes=1)
CATCH_UP = '{"misfire": "catch_up", "catch_up_limit": 3}'

# The three on the grid of the minutes are never moved by hand, so their slots must cover it without
# a hole.
GRID = {"grid": None, "catching-up": CATCH_UP, "overlapping": OVERLAP}
EDITED = "edited"
# Not where runs may overlap: a hand that unlocks such a job between claim and dispatch runs the
# slot twice.
UNLOCKED = ("grid", "catching-up", EDITED)

Key = tuple[str, str, int]  # run id, claim id, fence
Slot = tuple[str, datetime, str]  # job name, instant, kind
Row = Mapping[str, Any]

picks = st.integers(0, 30)  # which of those known, counted from the latest
jobs = st.sampled_from([*GRID, EDITED])


@dataclass
class Tenure:
    """Who was told that the job is theirs, and until when."""

    key: Key
    until: datetime
    published: bool = False
    republishes: int = 0


@dataclass
class Known:
    """What the answers say about a run."""

    job: str
    slot: Slot
    exclusive: bool
    state: str
    claim_id: str
    fence: int
    started_with: int | None = None
    start_id: str | None = None
    late: bool = False
    needs_lease: bool = False
    """Whether it was left to the broker after its last deadline, and not fired and forgotten."""
    until: datetime | None = None
    begun: set[tuple[int, int]] = field(default_factory=set)
    """Each beginning, as its Celery retry and the number of times that the run was un-started
    before."""
    un_started: int = 0

    def key(self, run_id: str) -> Key:
        return run_id, self.claim_id, self.fence


class Walk(RuleBasedStateMachine):
    """One walk in one namespace."""

    place: Place

    @initialize()
    def begin(self) -> None:
        store = self.place.store(f"walk-{secrets.token_hex(6)}")
        self.world = World(store, self.place.sql, self.place.set_clock)
        self.instants = 0
        self.pass_time(0)
        self.planner = self.world.planner_for(max_retries=MAX_RETRIES)
        self.beats = [BeatView(store, f"beat-{number}") for number in range(2)]
        self.workers = [WorkerView(store, f"worker-{number}") for number in range(2)]
        for name, policies in GRID.items():
            self.world.add(name, Schedule="cron * * * * *", NextRunTime=NOON, Policies=policies)
        self.world.add(EDITED, Schedule="every 60s")
        self.job_ids = {name: str(self.world.job(name)["id"]).lower() for name in (*GRID, EDITED)}
        self.tenures: dict[str, Tenure] = {}
        self.left: dict[str, str] = {}  # jobs unlocked by hand, with the run left there
        self.known: dict[str, Known] = {}
        self.claims: list[Claim] = []
        self.requests: list[StartRequest] = []
        self.runs: list[StartedRun] = []
        self.seen: list[HeldLease] = []
        self.fences: dict[str, int] = defaultdict(int)
        self.more_attempts: dict[Slot, int] = defaultdict(int)
        self.failures: dict[Slot, int] = defaultdict(int)
        self.lost_leases: dict[Slot, int] = defaultdict(int)
        self.moved: datetime | None = None  # the next run that a hand wrote and no new slot has followed yet
        self.slots: set[Slot] = set()
        self.closed: dict[str, Row] = {}

    # Time and people

    def pass_time(self, seconds: float) -> None:
        """Let the clock run; no two of its instants are ever the same, or two slots might be."""
        self.instants += 1
        self.world.at((self.world.now + timedelta(seconds=seconds)).replace(microsecond=self.instants))

    @rule(seconds=st.sampled_from([0.5, 14, 16, 59, 61, 121, 250, 500, 4000]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(seconds=st.sampled_from([5, 70, 4000]))
    def the_servers_clock_steps_back(self, seconds: float) -> None:
        self.pass_time(-seconds)

    @rule(name=jobs, enabled=st.booleans())
    def a_hand_pauses_or_resumes(self, name: str, enabled: bool) -> None:
        self.world.change(name, Enabled=int(enabled))

    @rule(seconds=st.sampled_from([-90, 0, 45, 600]))
    def a_hand_moves_the_next_run(self, seconds: float) -> None:
        self.pass_time(0)
        self.moved = self.world.now + timedelta(seconds=seconds)
        self.world.change(EDITED, NextRunTime=self.moved)

    @rule(policies=st.sampled_from([None, OVERLAP]))
    def a_hand_changes_the_overlap_policy(self, policies: str | None) -> None:
        self.world.change(EDITED, Policies=policies)

    @precondition(lambda self: any(name in self.tenures for name in UNLOCKED))
    @rule(name=st.sampled_from(UNLOCKED))
    def a_hand_unlocks(self, name: str) -> None:
        if name in self.tenures and self.known[self.tenures[name].key[0]].exclusive:
            self.world.change(name, LockedBy=None)
            self.left[name] = self.tenures.pop(name).key[0]

    @rule(name=jobs)
    def an_operator_runs_now(self, name: str) -> None:
        self.pass_time(0)
        assert self.world.add_slot(self.job_ids[name])
        self.slots.add((name, self.world.now, "manual"))

    @rule(name=jobs)
    def an_operator_cancels(self, name: str) -> None:
        tenure = self.tenures.pop(name, None)
        with self.answer(tenure is not None):
            assert self.world.admin.cancel(name) == (tenure is not None)
        if tenure is not None:
            self.note_ending(tenure.key[0], Ending("cancelled"))

    @rule()
    def an_operator_replays_the_dead(self) -> None:
        runs = [NewRun(self.world.ids.run_ids(1)[0], dead.job_id, dead) for dead in self.world.letters()]
        fresh = [(run, run.letter) for run in runs if run.letter is not None and run.letter.reason != "replayed"]
        assert self.world.admin.enqueue(runs) == {run.run_id for run, _ in fresh}
        for _, dead in fresh:
            slot = (dead.job_name, dead.scheduled_for, dead.kind)
            self.more_attempts[slot] += 1
            self.failures[slot] = self.lost_leases[slot] = 0

    # Beats

    @rule(beat=st.integers(0, 1))
    def a_beat_claims(self, beat: int) -> None:
        self.claim(beat)

    def claim(self, beat: int) -> list[Claim]:
        claims = claim_due(self.beats[beat], self.planner, 500, DISPATCH)
        assert not claims.quarantines
        names = [claim.job_name for claim in claims.claims]
        assert len(names) == len(set(names)), "G9: one slot of a job at a time"
        made = sorted(claims.claims, key=lambda claim: claim.job_name)
        for claim in made:
            self.note_claim(claim)
        return made

    def note_claim(self, claim: Claim) -> None:
        name, slot = claim.job_name, (claim.job_name, claim.slot.scheduled_for, claim.slot.kind)
        assert name not in self.tenures, f"G1: {name} is held"
        assert claim.fence > self.fences[name], "G4: the fence grows with every claim"
        self.fences[name] = claim.fence
        self.tenures[name] = Tenure(key_of(claim), self.world.now + timedelta(seconds=DISPATCH))
        left = self.known.get(self.left.pop(name, ""))
        if left is not None and left.state == "running":
            left.state, self.more_attempts[left.slot] = "ended", self.more_attempts[left.slot] + 1
        elif left is not None and left.state == "claimed":
            left.state = "waiting"
        before = self.known.get(claim.run_id)
        if before is None:
            self.known[claim.run_id] = Known(name, slot, claim.exclusive, "claimed", claim.claim_id, claim.fence)
        else:
            assert before.state == "waiting", "an attempt is claimed again only if nobody has it"
            assert before.slot == slot
            before.exclusive = claim.exclusive
            before.state, before.claim_id, before.fence = "claimed", claim.claim_id, claim.fence
            before.started_with, before.start_id, before.late = None, None, False
        if name == EDITED and claim.slot.advances and claim.slot.continues is None:
            self.moved = None
        self.slots.add(slot)
        self.claims.append(claim)

    @precondition(lambda self: self.claims)
    @rule(pick=picks, beat=st.integers(0, 1))
    def a_beat_marks_published(self, pick: int, beat: int) -> None:
        self.mark(recent(self.claims, pick), beat)

    def mark(self, claim: Claim, beat: int) -> None:
        if not claim.exclusive:
            return  # beat marks these as dispatched
        run, tenure = self.known[claim.run_id], self.tenures.get(claim.job_name)
        mine = tenure is not None and tenure.key == key_of(claim) and run.started_with is None
        with self.answer(mine):
            marked = self.beats[beat].mark_published([(claim, claim.lease_seconds)]).done
        assert marked == ({claim.run_id} if mine else set())
        if mine and tenure is not None:
            tenure.published, tenure.until = True, self.world.now + timedelta(seconds=claim.lease_seconds)

    @precondition(lambda self: self.claims)
    @rule(pick=picks, beat=st.integers(0, 1), ending=st.sampled_from(["given back", "dispatched"]))
    def a_beat_lets_go(self, pick: int, beat: int, ending: str) -> None:
        self.let_go(recent(self.claims, pick), beat, ending)

    def let_go(self, claim: Claim, beat: int, ending: str) -> None:
        run, mine = self.known[claim.run_id], self.claim_is_held(claim)
        with self.answer(mine):
            store = self.beats[beat]
            recorded = (
                store.mark_dispatched([claim]) if ending == "dispatched" else store.release_claims([claim], "no broker")
            )
        assert recorded.done == ({claim.run_id} if mine else set())
        if mine:
            del self.tenures[claim.job_name]
            if run.started_with is None:
                run.state = "dispatched" if ending == "dispatched" else "waiting"

    @rule(beat=st.integers(0, 1))
    def a_beat_looks_for_ended_leases(self, beat: int) -> None:
        self.ended(beat)

    def ended(self, beat: int) -> list[HeldLease]:
        found = sorted(self.beats[beat].ended(500), key=lambda lease: (lease.job_name, lease.scheduled_for, lease.kind))
        for lease in found:
            tenure, run = self.tenures.get(lease.job_name), self.known[lease.run_id]
            ends = [tenure.until if tenure is not None and tenure.key == key_of(lease) else None, run.until]
            assert any(at is not None and at <= self.world.now for at in ends), "a living lease was found ended"
        self.seen += found
        return found

    @precondition(lambda self: self.seen)
    @rule(pick=picks, beat=st.integers(0, 1), expired=st.booleans(), counted=st.booleans(), publish=st.booleans())
    def a_beat_deals_with_an_ended_lease(
        self, pick: int, beat: int, expired: bool, counted: bool, publish: bool
    ) -> None:
        self.deal_with(recent(self.seen, pick), beat, expired, counted, publish)

    def deal_with(
        self, lease: HeldLease, beat: int, expired: bool = False, counted: bool = True, publish: bool = True
    ) -> None:
        decision = self.world.decided(lease, publish, max_lost=MAX_LOST, expired=expired, counted=counted)
        run, tenure = self.known[lease.run_id], self.tenures.get(lease.job_name)
        its_jobs = tenure is not None and tenure.key == key_of(lease) and tenure.until <= self.world.now
        if isinstance(decision, Republish):
            mine = (
                its_jobs and run.started_with is None and tenure is not None and tenure.republishes == lease.republishes
            )
            with self.answer(mine):
                again = self.beats[beat].postpone_start_deadline([(lease, decision.queued_seconds)])
            assert again == ({lease.run_id} if mine else set())
            if mine and tenure is not None:
                tenure.republishes += 1
                assert tenure.republishes <= lifecycle.MAX_REPUBLISHES, "G9"
                tenure.until = self.world.now + timedelta(seconds=decision.queued_seconds)
            return
        losing = decision.state in (lifecycle.RETRY, lifecycle.DLQ)
        frees = its_jobs and (run.started_with is None or not run.exclusive or losing)
        if not run.exclusive and losing and tenure is not None and tenure.key == key_of(lease):
            frees = True
        held = run.state == "running" and not run.exclusive and run.key(lease.run_id) == key_of(lease)
        loses = held and losing and run.until is not None and run.until <= self.world.now
        with self.answer(frees or loses):
            done = self.beats[beat].reclaim([(lease, decision)])
        assert done == ({lease.run_id} if frees or loses else set())
        if frees:
            del self.tenures[lease.job_name]
        if loses or (frees and (run.exclusive or run.started_with is None)):
            self.note_ending(lease.run_id, decision)

    @rule(beat=st.integers(0, 1))
    def a_beat_sweeps(self, beat: int) -> None:
        for lease in self.ended(beat):
            self.deal_with(lease, beat)

    # Workers

    def may_start(self, request: StartRequest) -> bool:
        run = self.known[request.run_id]
        if request.claim_id != run.claim_id:
            return False
        tenure = self.tenures.get(run.job)
        again = run.started_with is not None and (
            request.celery_retries > run.started_with or request.start_id == run.start_id
        )
        if run.state == "dispatched":
            free = tenure is None and run.job not in self.left
            return request.fence == run.fence and (free or not run.exclusive or not run.needs_lease)
        if run.state not in ("claimed", "running") or not (run.started_with is None or again):
            return False
        if not run.exclusive:
            return request.fence == run.fence
        right = request.fence == run.fence or (run.late and request.fence < run.fence)
        return right and tenure is not None and tenure.key == run.key(request.run_id)

    def is_over(self, request: StartRequest) -> bool:
        """Return whether a refused run ends: its deadlines have passed, and its job is held."""
        run = self.known[request.run_id]
        right = (request.claim_id, request.fence) == (run.claim_id, run.fence)
        return right and run.state == "dispatched" and run.exclusive and run.needs_lease

    def ask(self, request: StartRequest, worker: int) -> StartedRun | None:
        may = self.may_start(request)
        with self.answer(may, [] if may else [request]):
            started = self.workers[worker].start([request]).get(request.run_id)
        assert (started is not None) == may, f"G3: expected {may}"
        if started is None:
            return None
        run = self.known[request.run_id]
        if request.start_id != run.start_id:
            beginning = (request.celery_retries, run.un_started)
            assert beginning not in run.begun, "G3: one start per attempt"
            run.begun.add(beginning)
        if run.state == "dispatched" and not run.needs_lease:
            run.exclusive = False
        run.late = run.late or (run.state == "dispatched" and run.exclusive)
        assert started.fence > request.fence if run.late else started.fence == request.fence
        run.state, run.fence = "running", started.fence
        run.started_with, run.start_id = request.celery_retries, request.start_id
        until = self.world.now + timedelta(seconds=started.lease_seconds)
        if run.exclusive:
            tenure = self.tenures.get(run.job)
            assert tenure is None or tenure.key == key_of(started), "G1"
            self.tenures[run.job] = Tenure(key_of(started), until)
            self.fences[run.job] = max(self.fences[run.job], started.fence)
        else:
            run.until = until
        self.runs.append(started)
        return started

    @precondition(lambda self: self.claims)
    @rule(pick=picks, worker=st.integers(0, 1), retries=st.sampled_from([0, 0, 0, 1, 2]))
    def a_worker_starts(self, pick: int, worker: int, retries: int) -> None:
        claim = recent(self.claims, pick)
        self.requests.append(self.world.request(claim, retries))
        self.ask(self.requests[-1], worker)

    @precondition(lambda self: self.requests)
    @rule(pick=picks, worker=st.integers(0, 1))
    def a_worker_asks_the_same_again(self, pick: int, worker: int) -> None:
        self.ask(recent(self.requests, pick), worker)

    @precondition(lambda self: self.claims)
    @rule(pick=picks, forged=st.sampled_from(["claim_id", "higher fence", "lower fence"]))
    def a_forged_message_arrives(self, pick: int, forged: str) -> None:
        request = self.world.request(recent(self.claims, pick))
        if forged == "claim_id":
            request = request._replace(claim_id=self.world.ids.random_id())
        else:
            run = self.known[request.run_id]
            request = request._replace(fence=run.fence + 1 if forged == "higher fence" else request.fence - 1)
        if not self.may_start(request):  # below the fence of a late start every fence is that of its message
            self.ask(request, 0)

    def holds(self, run: StartedRun) -> bool:
        known = self.known[run.run_id]
        if known.exclusive:
            tenure = self.tenures.get(known.job)
            return tenure is not None and tenure.key == key_of(run)
        return known.state == "running" and known.key(run.run_id) == key_of(run)

    @precondition(lambda self: self.runs)
    @rule(chosen=st.lists(picks, min_size=1, max_size=5), worker=st.integers(0, 1))
    def a_worker_extends(self, chosen: list[int], worker: int) -> None:
        runs = list({key_of(run): run for run in (recent(self.runs, pick) for pick in chosen)}.values())
        self.extend(list({run.run_id: run for run in runs}.values()), worker)

    def extend(self, runs: list[StartedRun], worker: int) -> None:
        mine = [run for run in runs if self.holds(run)]
        with self.answer(bool(mine)):
            lost = self.workers[worker].extend([(run, LEASE) for run in runs]).lost
        assert lost == {run.run_id for run in runs} - {run.run_id for run in mine}
        for run in mine:
            until = self.world.now + timedelta(seconds=LEASE)
            if self.known[run.run_id].exclusive:
                self.tenures[run.job_name].until = until
            else:
                self.known[run.run_id].until = until

    @precondition(lambda self: self.runs)
    @rule(
        pick=picks,
        worker=st.integers(0, 1),
        kind=st.sampled_from(["success", "failed", "failed", "lost", "uncounted", "un-started"]),
    )
    def a_worker_finishes(self, pick: int, worker: int, kind: str) -> None:
        run = recent(self.runs, pick)
        self.finish(run, worker, ending_of(run, kind))

    def finish(self, run: StartedRun, worker: int, ending: Ending) -> None:
        # A later retry of Celery's has the same claim and fence; what ended before it may end
        # nothing.
        mine = self.holds(run) and self.known[run.run_id].started_with == run.celery_retries
        with self.answer(mine):
            lost = self.workers[worker].finish([(run, ending)])
        assert lost == (set() if mine else {run.run_id})
        if mine:
            tenure = self.tenures.get(run.job_name)
            if tenure is not None and tenure.key == key_of(run):
                del self.tenures[run.job_name]
            self.note_ending(run.run_id, ending)

    def note_ending(self, run_id: str, ending: Ending) -> None:
        run = self.known[run_id]
        self.failures[run.slot] += ending.failures
        self.lost_leases[run.slot] += ending.lost_leases
        if ending.state == lifecycle.SCHEDULED:
            run.un_started += run.started_with is not None
            run.state, run.until = "waiting", None
            run.started_with = None
            return
        run.state, run.until = "dispatched" if ending.state == lifecycle.DISPATCHED else "ended", None
        run.needs_lease = ending.reason == lifecycle.NEVER_STARTED
        self.more_attempts[run.slot] += ending.state == lifecycle.RETRY

    @rule(worker=st.integers(0, 1))
    def everything_works(self, worker: int) -> None:
        for claim in self.claim(0):
            if claim.exclusive:
                self.mark(claim, 0)
            else:
                self.let_go(claim, 0, "dispatched")
            self.requests.append(self.world.request(claim))
            self.ask(self.requests[-1], worker)

    @rule(seconds=st.sampled_from([16, 121, 1000]), worker=st.integers(0, 1))
    def nobody_writes_until_others_take_over(self, seconds: float, worker: int) -> None:
        self.pass_time(seconds)
        for lease in self.ended(1):
            self.deal_with(lease, 1)
        self.everything_works(worker)

    @rule(name=jobs, kind=st.sampled_from(["failed", "lost"]))
    def a_job_never_succeeds(self, name: str, kind: str) -> None:
        for _ in range(4):
            self.everything_works(0)
            for run in [run for run in self.runs if run.job_name == name and self.holds(run)]:
                self.finish(run, 0, ending_of(run, kind))
            self.pass_time(20)

    @rule()
    def nobody_takes_the_messages(self) -> None:
        """G9: for each deadline there is one message more at most, and three of them in all."""
        for claim in self.claim(0):
            self.mark(claim, 0)
        for _ in range(5):
            self.pass_time(1000)
            for lease in self.ended(1):
                self.deal_with(lease, 1)

    @rule(seconds=st.sampled_from([16, 121]))
    def workers_extend_just_in_time(self, seconds: float) -> None:
        """Let a beat see leases end, and living workers extend them before it takes them."""
        self.pass_time(seconds)
        seen = self.ended(0)
        held = [run for run in {run.run_id: run for run in self.runs}.values() if self.holds(run)]
        self.extend(held, 0)
        for lease in seen:
            self.deal_with(lease, 0)

    @rule(seconds=st.sampled_from([16, 121]), slept=st.sampled_from([0, 121]))
    def workers_start_just_in_time(self, seconds: float, slept: float) -> None:
        """Let messages start, and perhaps get lost, after a beat has seen their deadlines pass."""
        self.pass_time(seconds)
        seen = self.ended(0)
        for claim in [claim for claim in self.claims if self.claim_is_held(claim)]:
            self.requests.append(self.world.request(claim))
            self.ask(self.requests[-1], 0)
        self.pass_time(slept)
        for lease in seen:
            self.deal_with(lease, 0)

    @rule()
    def the_dead_speak(self) -> None:
        """G4: all who lost what they had, and forgers, try everything that they can."""
        runs = [run for run in self.runs[-20:] if not self.holds(run)]
        claims = [claim for claim in self.claims[-20:] if not self.claim_is_held(claim)]
        leases = [lease for lease in self.seen[-20:] if self.is_stale(lease)]
        requests = [self.world.request(claim) for claim in self.claims[-20:]]
        requests += [request._replace(claim_id=self.world.ids.random_id()) for request in requests]
        requests += [request._replace(fence=self.known[request.run_id].fence + 1) for request in requests]
        requests = [request for request in requests if not self.may_start(request)]
        beat, worker = self.beats[1], self.workers[1]
        with self.answer(False, requests):
            assert worker.extend([(run, 9999) for run in runs]).lost == {run.run_id for run in runs}
            for kind in ("success", "failed", "un-started"):
                assert worker.finish([(run, ending_of(run, kind)) for run in runs]) == {run.run_id for run in runs}
            assert worker.start(requests) == {}
            assert beat.mark_published([(claim, 9999) for claim in claims]).done == set()
            assert beat.mark_dispatched(claims).done == set()
            assert beat.release_claims(claims, "no broker").done == set()
            for ending in (released("late"), Ending("dispatched"), after_lost_lease(0, 5)):
                assert beat.reclaim([(lease, ending) for lease in leases]) == set()
            assert beat.postpone_start_deadline([(lease, 9999) for lease in leases]) == set()

    def claim_is_held(self, claim: Claim) -> bool:
        """Whether the beat that made it may still write about it."""
        tenure, run = self.tenures.get(claim.job_name), self.known[claim.run_id]
        mine = tenure is not None and tenure.key == key_of(claim)
        return mine and (run.started_with is None or not run.exclusive)

    def is_stale(self, lease: HeldLease) -> bool:
        """Whether somebody else has this run by now, or nobody."""
        tenure, run = self.tenures.get(lease.job_name), self.known[lease.run_id]
        held = run.state == "running" and not run.exclusive and run.key(lease.run_id) == key_of(lease)
        return (tenure is None or tenure.key != key_of(lease)) and not held

    # Guarantees

    @contextmanager
    def answer(self, yes: bool, refused: Iterable[StartRequest] = ()) -> Iterator[None]:
        """G4: a refusal changes nothing, but for the end of what cannot begin."""
        over = {request.run_id for request in refused if self.is_over(request)}
        before = None if yes else self.tables(over)
        yield
        assert yes or self.tables(over) == before, "G4: a refused write changed something"
        for run_id in over:
            self.known[run_id].state = "ended"
        ends = self.world.sql("SELECT * FROM JobRuns WHERE Namespace = ?", self.world.namespace) if over else []
        states = {text(row["runid"]): (row["state"], row["reason"]) for row in ends}
        assert all(states[run_id] == (lifecycle.SKIPPED, lifecycle.OVERLAP) for run_id in over)

    def tables(self, besides: Collection[str] = ()) -> tuple[list[Row], list[Row]]:
        """Return the rows of jobs and runs, but for these runs."""
        rows = self.world.sql("SELECT * FROM JobRuns WHERE Namespace = ?", self.world.namespace)
        rows = [row for row in rows if text(row["runid"]) not in besides]
        return (
            self.world.sql("SELECT * FROM Jobs WHERE Namespace = ? ORDER BY JobName", self.world.namespace),
            sorted(
                rows, key=lambda row: (as_instant(row["scheduledfor"]), row["jobname"], row["attempt"], row["kind"])
            ),
        )

    @invariant()
    def every_guarantee_holds(self) -> None:
        if not hasattr(self, "known"):
            return
        job_rows, run_rows = self.tables()
        self.check_leases(job_rows)
        slots: dict[Slot, list[Row]] = defaultdict(list)
        for row in run_rows:
            slots[slot_of(row)].append(row)
            self.check_closed(row)
        by_name = {job["jobname"]: job for job in job_rows}
        if self.moved is not None:
            assert as_instant(by_name[EDITED]["nextruntime"]) == self.moved, "an operator's change was lost"
        assert self.slots <= slots.keys(), "G2: a slot disappeared"
        for slot, rows in slots.items():
            self.check_slot(by_name[slot[0]], slot, rows)
        for name in GRID:
            self.check_grid(by_name[name], slots)

    def check_leases(self, job_rows: Iterable[Row]) -> None:
        """G1: the rows say of every job what its holder was told."""
        for job in job_rows:
            tenure = self.tenures.get(job["jobname"])
            assert (job["lockedby"] is not None) == (tenure is not None)
            assert job["fence"] >= self.fences[job["jobname"]]
            if tenure is not None:
                assert (text(job["runid"]), text(job["claimid"]), job["fence"]) == tenure.key
                assert as_instant(job["leaseendsat"]) == tenure.until
                assert job["republishes"] <= lifecycle.MAX_REPUBLISHES, "G9"

    def check_closed(self, row: Row) -> None:
        """Check that an outcome stays as it was written, but for a late start and a replay."""
        before = self.closed.get(text(row["runid"]))
        if before is not None and row["reason"] != "replayed" and before["state"] != lifecycle.DISPATCHED:
            assert row == before, "an outcome was changed"
        if row["state"] in lifecycle.OUTCOMES:
            self.closed[text(row["runid"])] = row
        else:
            self.closed.pop(text(row["runid"]), None)

    def check_slot(self, job: Row, slot: Slot, rows: list[Row]) -> None:
        *earlier, last = rows
        attempts = [row["attempt"] for row in rows]
        assert attempts == list(range(attempts[0], attempts[0] + len(rows)))
        for row in earlier:
            assert row["state"] == lifecycle.RETRY or (row["state"], row["reason"]) == (lifecycle.DLQ, "replayed"), (
                "G2: two outcomes"
            )
            assert row["dueat"] is None, "G2: an attempt that another one follows waits in the outbox"
            assert row["heldby"] is None, "G1: an attempt that another one follows has a lease"
        assert len(rows) <= 1 + self.more_attempts[slot], "G10: more attempts than reasons for them"
        assert last["failures"] == self.failures[slot] <= MAX_RETRIES + 1, "G10: bounded retries"
        assert last["lostleases"] == self.lost_leases[slot] <= MAX_LOST + 1, "G10: bounded losses"
        places = (
            last["dueat"] is not None,
            text(job["retryrunid"]) == text(last["runid"]) and job["retryat"] is not None,
            text(job["runid"]) == text(last["runid"]),
            last["heldby"] is not None,
        )
        if last["state"] in (lifecycle.SCHEDULED, lifecycle.RETRY):
            assert places in ((True, False, False, False), (False, True, False, False)), "G2: who takes it up?"
        elif last["state"] == lifecycle.CLAIMED:
            assert places[2] and not places[0], "G2: a claimed slot is held by its job's row"
        elif last["state"] == lifecycle.RUNNING:
            assert places[2 if last["exclusive"] else 3] and not places[0], "G2: a running slot has a lease"
        else:
            assert last["state"] in lifecycle.OUTCOMES
            assert places == (False, False, False, False), "G2: an ended slot waits for nothing"
        if last["state"] == lifecycle.SKIPPED:
            assert last["reason"] in ("misfire", "overlap", "paused", "expired", "superseded")

    def check_grid(self, job: Row, slots: Mapping[Slot, list[Row]]) -> None:
        """G2: runs and gaps cover the minutes from the first to the latest, each of them once."""
        covered: list[datetime] = []
        on_the_way: list[datetime] = []
        for (name, at, kind), rows in slots.items():
            if name == job["jobname"] and kind == "schedule":
                covered += [at + minute * MINUTE for minute in range(rows[-1]["slotcount"])]
                last_slot = as_instant(rows[-1]["lastslot"])
                assert last_slot is None or last_slot == covered[-1]
                waits = job["retryat"] is not None and text(job["retryrunid"]) == text(rows[-1]["runid"])
                if rows[-1]["advances"] and (waits or text(job["runid"]) == text(rows[-1]["runid"])):
                    on_the_way.append(at)
        covered.sort()
        assert covered == [NOON + minute * MINUTE for minute in range(len(covered))], "G2: a hole or an overlap"
        following = as_instant(job["nextruntime"])
        assert following is not None
        if on_the_way:
            assert following <= min(on_the_way), "a slot that has not ended moved the next run"
        else:
            assert following == NOON + len(covered) * MINUTE, "G2: slots were passed over in silence"

    def teardown(self) -> None:
        """Whatever happened: when beats and workers run again, every slot gets its outcome."""
        if not hasattr(self, "known"):
            return
        try:
            self.the_dead_speak()
            self.settle()
            self.the_dead_speak()
        finally:
            self.world.clear()
            self.world.store.close()

    def settle(self) -> None:
        for name in (*GRID, EDITED):
            self.world.change(name, Enabled=1)
        self.world.at(max(self.world.now, NOON + timedelta(days=1)))
        _, rows = self.tables()
        slots = {slot_of(row) for row in rows}
        for _ in range(len(slots) + 10):
            self.pass_time(3601)
            self.a_beat_sweeps(0)
            first = len(self.runs)
            self.everything_works(0)
            for run in self.runs[first:]:
                self.finish(run, 0, ending_of(run, "success"))
            self.every_guarantee_holds()
            _, rows = self.tables()
            states = {slot_of(row): row["state"] for row in rows}  # the last attempt comes last
            if all(states[slot] in lifecycle.OUTCOMES for slot in slots):
                return
        raise AssertionError(f"G2: no outcome for {[slot for slot in slots if states[slot] not in lifecycle.OUTCOMES]}")


def recent(known: list[Any], pick: int) -> Any:
    """One of those known; 0 is the latest."""
    return known[-1 - pick % len(known)]


def key_of(one: Claim | StartedRun | HeldLease) -> Key:
    return one.run_id, one.claim_id, one.fence


def slot_of(row: Row) -> Slot:
    at = as_instant(row["scheduledfor"])
    assert at is not None
    return row["jobname"], at, row["kind"]


def text(value: Any) -> str:
    """Return an id in the one form that all databases can give."""
    return "" if value is None else str(value).lower()


def ending_of(run: StartedRun, kind: str) -> Ending:
    """Return what a worker decides about its run."""
    endings: dict[str, Callable[[], Ending]] = {
        "success": lifecycle.after_success,
        "failed": lambda: after_failure(run.failures, run.max_retries, Backoff(), lambda: 0.5, "ValueError"),
        "lost": lambda: after_lost_lease(run.lost_leases, MAX_LOST),
        "uncounted": lambda: after_lost_lease(run.lost_leases, MAX_LOST, "shutdown", counted=False),
        "un-started": lambda: released("shutdown"),
    }
    return endings[kind]()


@pytest.mark.slow
def test_no_walk_of_beats_workers_and_operators_breaks_a_guarantee(place: Place) -> None:
    number = int(os.environ.get("SQLBEAT_TEST_SEED") or (2027 if os.environ.get("CI") else secrets.randbelow(10**9)))
    print(f"SQLBEAT_TEST_SEED={number}")
    machine = seed(number)(type("Walk", (Walk,), {"place": place}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("SQLBEAT_TEST_WALKS") or EXAMPLES[place.dialect().name]),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

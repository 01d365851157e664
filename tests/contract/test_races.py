"""Races: two transactions in either order, then crowds of threads and processes on the same rows.

In a staged race the first side has written and not committed while the second one begins; so the
second either waits for the first or passes it by, but what becomes of the run is always what the
order says.
"""

import multiprocessing
import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from celery_sqlbeat.model import AddJob, Claim, DeleteJob, JobDraft, NewRun, PauseJob, StartedRun, StartRequest
from celery_sqlbeat.model.lifecycle import DLQ, Ending, after_lost_lease, after_success, released
from celery_sqlbeat.store.records import Extended, JobQuery
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Session
from celery_sqlbeat.store.sql.store import SqlStore
from tests.contract import crowd
from tests.contract.conftest import RACING, Place
from tests.support.claiming import claim_due
from tests.support.views import AdminView, BeatView, WorkerView
from tests.support.world import DISPATCH, LEASE, NOON, OVERLAP, World, earliest

pytestmark = pytest.mark.parametrize("place", RACING, indirect=True)
DEADLINE_SECONDS = 60
CROWD = 8
ROWS = 4000

T = TypeVar("T")
U = TypeVar("U")


class Signalling:
    """A session that tells when it begins, and asks before it commits."""

    def __init__(self, inner: Session, begins: Callable[[], None], commits: Callable[[], None]) -> None:
        self._inner, self._begins, self._commits = inner, begins, commits

    def begin(self) -> None:
        self._begins()
        self._inner.begin()

    def commit(self) -> None:
        self._commits()
        self._inner.commit()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Staged:
    """A dialect of signalling sessions; all its statements are in transactions."""

    single_statements_commit = False

    def __init__(self, inner: Any, begins: Callable[[], None], commits: Callable[[], None]) -> None:
        self._inner, self._begins, self._commits = inner, begins, commits

    def connect(self) -> Any:
        return Signalling(self._inner.connect(), self._begins, self._commits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Race:
    """One world, and a way to let two sides meet in it."""

    def __init__(self, place: Place, world: World) -> None:
        self.place, self.world = place, world

    def run(self, first: Callable[[SqlStore], T], second: Callable[[SqlStore], U]) -> tuple[T, U]:
        """Let the second side begin when the first has written, but not committed."""
        written, begun = threading.Event(), threading.Event()

        def hold() -> None:
            written.set()
            assert begun.wait(DEADLINE_SECONDS)

        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(self._side, first, lambda: None, hold)
            one.add_done_callback(lambda _: written.set())
            assert written.wait(DEADLINE_SECONDS)
            other = pool.submit(self._side, second, begun.set, lambda: None)
            other.add_done_callback(lambda _: begun.set())
            return one.result(DEADLINE_SECONDS), other.result(DEADLINE_SECONDS)

    def _side(self, act: Callable[[SqlStore], T], begins: Callable[[], None], commits: Callable[[], None]) -> T:
        dialect: Any = Staged(self.place.dialect(), begins, commits)
        store = SqlStore(Database(dialect, patience=DEADLINE_SECONDS), self.world.namespace)
        try:
            return act(store)
        finally:
            store.close()

    def dead(self) -> tuple[str, Callable[[], Callable[[SqlStore], set[str]]]]:
        """Make a job with a dead letter; returns its name and a side that replays the letter."""
        name = self.world.add(Policies=OVERLAP)
        run = self.world.start(self.world.forgotten())
        assert run is not None and self.world.finish(run, Ending(DLQ, "retries exhausted", None, 1))
        (letter,) = self.world.letters()

        def replay() -> Callable[[SqlStore], set[str]]:
            (run_id,) = self.world.ids.run_ids(1)
            return lambda store: AdminView(store).enqueue([NewRun(run_id, letter.job_id, letter)])

        return name, replay

    # The sides

    def start(self, claim: Claim, worker: str = "worker-1") -> Callable[[SqlStore], StartedRun | None]:
        request = self.world.request(claim)
        return lambda store: WorkerView(store, worker).start([request]).get(claim.run_id)

    def finish(self, run: StartedRun) -> Callable[[SqlStore], set[str]]:
        return lambda store: WorkerView(store, "worker-1").finish([(run, after_success())])

    def extend(self, run: StartedRun) -> Callable[[SqlStore], Extended]:
        return lambda store: WorkerView(store, "worker-1").extend([(run, LEASE)])

    def release_claims(self, claim: Claim) -> Callable[[SqlStore], set[str]]:
        return lambda store: BeatView(store, "beat-1").release_claims([claim], "no answer from the broker").done

    def mark(self, claim: Claim) -> Callable[[SqlStore], set[str]]:
        return lambda store: BeatView(store, "beat-1").mark_published([(claim, LEASE)]).done

    def dispatch(self, claim: Claim) -> Callable[[SqlStore], set[str]]:
        return lambda store: BeatView(store, "beat-1").mark_dispatched([claim]).done

    def claim(self, beat: str = "beat-2") -> Callable[[SqlStore], list[Claim]]:
        return lambda store: claim_due(BeatView(store, beat), self.world.planner, 500, DISPATCH).claims

    def take_over(self, beat: str = "beat-2") -> Callable[[SqlStore], set[str]]:
        """Reclaim what has ended by now, as a beat decides before the race."""
        (lease,) = self.world.beat.ended(10)
        ending = after_lost_lease(0, 5) if lease.started else released("not published in time")
        return lambda store: BeatView(store, beat).reclaim([(lease, ending)])

    def republish(self, beat: str = "beat-2") -> Callable[[SqlStore], set[str]]:
        (lease,) = self.world.beat.ended(10)
        return lambda store: BeatView(store, beat).postpone_start_deadline([(lease, 240)])


@pytest.fixture
def race(place: Place, world: World) -> Race:
    return Race(place, world)


def test_two_beats_claim_one_job(race: Race) -> None:
    name = race.world.add()
    first, second = race.run(race.claim("beat-1"), race.claim("beat-2"))
    assert ([claim.job_name for claim in first], second) == ([name], [])
    assert race.world.job(name)["lockedby"] == "beat-1"
    assert race.world.states(name) == ["claimed"]


def test_two_workers_start_one_message(race: Race) -> None:
    name = race.world.add()
    claim = race.world.claim_one()
    first, second = race.run(race.start(claim, "worker-1"), race.start(claim, "worker-2"))
    assert first is not None and second is None
    assert race.world.job(name)["lockedby"] == "worker-1"


def test_two_workers_start_one_overlapping_message(race: Race) -> None:
    name = race.world.add(Policies=OVERLAP)
    claim = race.world.claim_one()
    first, second = race.run(race.start(claim, "worker-1"), race.start(claim, "worker-2"))
    assert first is not None and second is None
    assert race.world.runs(name)[0]["heldby"] == "worker-1"


def test_two_administrators_replay_one_letter(race: Race) -> None:
    name, replay = race.dead()
    first, second = race.run(replay(), replay())
    assert len(first) == 1 and second == set()
    assert race.world.states(name) == ["dlq", "scheduled"]


def test_a_slot_that_a_beat_claims_again_is_not_replayed_beside_that(race: Race) -> None:
    """Its job was moved back by hand.

    Whoever replays saw no later attempt, and its number is taken when it commits.
    """
    name, replay = race.dead()
    race.world.change(name, NextRunTime=NOON)
    claims, made = race.run(race.claim(), replay())
    assert [claim.slot.attempt for claim in claims] == [2] and made == set()
    assert race.world.states(name) == ["dlq", "claimed"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_start_and_its_giving_back(race: Race, order: int) -> None:
    name = race.world.add()
    claim = race.world.claim_one()
    if order == 1:
        run, given = race.run(race.start(claim), race.release_claims(claim))
        assert run is not None and given == set()
        assert race.world.states(name) == ["running"]
        assert race.world.finish(run)
    else:
        given, run = race.run(race.release_claims(claim), race.start(claim))
        assert run is None and given == {claim.run_id}
        assert race.world.states(name) == ["scheduled"]
        assert race.world.claim_one().run_id == claim.run_id


@pytest.mark.parametrize("order", [1, -1])
def test_a_start_and_the_marking_of_its_message(race: Race, order: int) -> None:
    name = race.world.add()
    claim = race.world.claim_one()
    if order == 1:
        run, marked = race.run(race.start(claim), race.mark(claim))
        assert marked == set()
    else:
        marked, run = race.run(race.mark(claim), race.start(claim))
        assert marked == {claim.run_id}
    assert run is not None
    assert race.world.job(name)["lockedby"] == "worker-1"
    assert race.world.instant(name, "leaseendsat") == race.world.beat.next_deadlines().lease_ends_at
    assert race.world.finish(run)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_start_and_the_dispatch_of_its_message(race: Race, order: int, columns: dict[str, Any]) -> None:
    name = race.world.add(**columns)
    claim = race.world.claim_one()
    if order == 1:
        run, _ = race.run(race.start(claim), race.dispatch(claim))
        assert run is not None and run.fence == claim.fence
    else:
        dispatched, run = race.run(race.dispatch(claim), race.start(claim))
        assert dispatched == {claim.run_id}
        assert run is not None and run.fence == claim.fence and not run.exclusive
    assert race.world.states(name) == ["running"]
    assert race.world.start(claim) is None
    assert race.world.finish(run)
    assert race.world.states(name) == ["success"]
    assert race.world.job(name)["lockedby"] is None
    assert earliest(race.world.beat.next_deadlines()) == race.world.instant(name, "nextruntime")


@pytest.mark.parametrize("order", [1, -1])
def test_a_start_and_a_takeover_of_its_unpublished_claim(race: Race, order: int) -> None:
    name = race.world.add()
    claim = race.world.claim_one()
    race.world.later(DISPATCH)
    taking = race.take_over()
    if order == 1:
        run, taken = race.run(race.start(claim), taking)
        assert run is not None and taken == set()
        assert race.world.states(name) == ["running"]
    else:
        taken, run = race.run(taking, race.start(claim))
        assert run is None and taken == {claim.run_id}
        assert race.world.states(name) == ["scheduled"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_start_and_the_republishing_of_its_message(race: Race, order: int) -> None:
    name = race.world.add()
    claim = race.world.claim_one()
    race.world.publish(claim)
    race.world.later(LEASE)
    again = race.republish()
    if order == 1:
        run, sent = race.run(race.start(claim), again)
        assert sent == set()
    else:
        sent, run = race.run(again, race.start(claim))
        assert sent == {claim.run_id}
    assert run is not None
    assert race.world.job(name)["lockedby"] == "worker-1"
    assert race.world.start(claim) is None


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_heartbeat_and_a_takeover(race: Race, order: int, columns: dict[str, Any]) -> None:
    name = race.world.add(**columns)
    claim = race.world.claim_one()
    if columns:
        race.world.beat.mark_dispatched([claim])
    run = race.world.start(claim)
    assert run is not None
    race.world.later(LEASE)
    taking = race.take_over()
    if order == 1:
        extended, taken = race.run(race.extend(run), taking)
        assert (extended, taken) == (Extended(set(), set()), set())
        assert race.world.finish(run)
    else:
        taken, extended = race.run(taking, race.extend(run))
        assert taken == {run.run_id}
        # It does not wait for the locked row: it knows that it extended nothing, and asks again.
        assert extended in (Extended(set(), {run.run_id}), Extended({run.run_id}, set()))
        assert race.extend(run)(race.world.store) == Extended({run.run_id}, set())
        assert race.world.states(name) == ["retry"]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_an_outcome_and_a_takeover(race: Race, order: int, columns: dict[str, Any]) -> None:
    name = race.world.add(**columns)
    claim = race.world.claim_one()
    if columns:
        race.world.beat.mark_dispatched([claim])
    run = race.world.start(claim)
    assert run is not None
    race.world.later(LEASE)
    taking = race.take_over()
    if order == 1:
        lost, taken = race.run(race.finish(run), taking)
        assert (lost, taken) == (set(), set())
        assert race.world.states(name) == ["success"]
    else:
        taken, lost = race.run(taking, race.finish(run))
        assert (lost, taken) == ({run.run_id}, {run.run_id})
        assert race.world.states(name) == ["retry"]


@pytest.mark.parametrize("order", [1, -1])
def test_an_outcome_and_a_cancelling_by_hand(race: Race, order: int) -> None:
    name = race.world.add()
    run = race.world.running()

    def cancel(store: SqlStore) -> bool:
        return AdminView(store).cancel(name)

    if order == 1:
        lost, cancelled = race.run(race.finish(run), cancel)
        assert (lost, cancelled) == (set(), False)
        assert race.world.states(name) == ["success"]
    else:
        cancelled, lost = race.run(cancel, race.finish(run))
        assert (lost, cancelled) == ({run.run_id}, True)
        assert race.world.states(name) == ["cancelled"]


def test_two_beats_take_over_one_lease(race: Race) -> None:
    name = race.world.add()
    run = race.world.running()
    race.world.later(LEASE)
    assert race.run(race.take_over("beat-1"), race.take_over("beat-2")) == ({run.run_id}, set())
    assert race.world.runs(name)[0]["lostleases"] == 1


def test_two_beats_republish_one_message(race: Race) -> None:
    name = race.world.add()
    claim = race.world.claim_one()
    race.world.publish(claim)
    race.world.later(LEASE)
    assert race.run(race.republish("beat-1"), race.republish("beat-2")) == ({claim.run_id}, set())
    assert (race.world.job(name)["lockedby"], race.world.job(name)["republishes"]) == ("beat-1", 1)


@pytest.mark.parametrize("order", [1, -1])
def test_a_late_start_of_what_was_forgotten_and_the_claim_of_the_next_slot(race: Race, order: int) -> None:
    name = race.world.add()
    early = race.world.forgotten()
    race.world.later(60)
    if order == 1:
        run, claims = race.run(race.start(early), race.claim())
        claims = claims or race.world.claim().claims  # a claim passes by what somebody has locked for a moment
    else:
        claims, run = race.run(race.claim(), race.start(early))
    assert run is not None and not run.exclusive
    assert [claim.slot.scheduled_for for claim in claims] == [race.world.now]
    assert race.world.states(name) == ["running", "claimed"]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_late_start_and_the_deletion_of_its_job(race: Race, order: int, columns: dict[str, Any]) -> None:
    name = race.world.add(**columns)
    claim = race.world.forgotten()

    def delete(store: SqlStore) -> set[str]:
        return AdminView(store).write_jobs([DeleteJob(name, force=True)]).done

    if order == 1:
        run, deleted = race.run(race.start(claim), delete)
        assert run is not None and race.world.worker.extend([(run, LEASE)]).lost == {run.run_id}
    else:
        deleted, run = race.run(delete, race.start(claim))
        assert run is None
        assert race.world.refused(claim) == "its job was deleted: the slot ends as cancelled"
    assert deleted and race.world.states(name) == ["cancelled"]
    assert race.world.admin.jobs(JobQuery(names=[name])) == {}


@pytest.mark.parametrize("order", [1, -1])
def test_a_late_start_of_a_leased_slot_and_the_claim_of_the_next_one(race: Race, order: int) -> None:
    name = race.world.add()
    early = race.world.never_started()
    if order == 1:
        run, claims = race.run(race.start(early), race.claim())
        assert run is not None and claims == []
    else:
        claims, run = race.run(race.claim(), race.start(early))
        assert run is None and len(claims) == 1
        assert race.world.refused(early) == "another run holds its job: the slot ends as skipped (overlap)"
    holder = run or claims[0]
    assert race.world.job(name)["fence"] == holder.fence > early.fence


@pytest.mark.parametrize("order", [1, -1])
def test_a_claim_and_a_pause(race: Race, order: int) -> None:
    name = race.world.add()

    def pause(store: SqlStore) -> set[str]:
        return AdminView(store).write_jobs([PauseJob(name, "holidays")]).done

    if order == 1:
        claims, paused = race.run(race.claim(), pause)
        assert len(claims) == 1
    else:
        paused, claims = race.run(pause, race.claim())
        assert claims == []
    assert paused == {name}
    assert race.world.job(name)["enabled"] == 0


# Crowds


def many_due(world: World) -> None:
    writes = [
        AddJob(JobDraft(f"job-{n:04}", "app.task", "every 60s", None, None, None, None, None, True, None, NOON, None))
        for n in range(ROWS)
    ]
    for at in range(0, ROWS, 500):
        assert len(world.write(*writes[at : at + 500])) == 500


def check_all_started_once(world: World, claimed: Counter[str], started: Counter[str]) -> None:
    assert len(claimed) == ROWS and set(claimed.values()) == {1}
    assert started == claimed
    rows = world.sql("SELECT State, RunId FROM JobRuns WHERE Namespace = ?", world.namespace)
    assert {str(row["runid"]).lower() for row in rows} == set(claimed)
    assert Counter(row["state"] for row in rows) == {"running": ROWS}
    jobs = world.sql("SELECT Fence, RunId FROM Jobs WHERE Namespace = ?", world.namespace)
    assert {job["fence"] for job in jobs} == {1}
    assert {str(job["runid"]).lower() for job in jobs} == set(claimed)
    world.clear()


@pytest.mark.slow
def test_eight_threads_claim_and_start_each_of_thousands_of_rows_once(place: Place, world: World) -> None:
    many_due(world)
    store = SqlStore(Database(place.dialect(), patience=crowd.PATIENCE_SECONDS), world.namespace)
    messages: deque[StartRequest] = deque()
    claimed: list[str] = []
    started: list[str] = []
    together = threading.Barrier(CROWD)

    def take_part(number: int) -> None:
        beat, worker = BeatView(store, f"beat-{number}"), WorkerView(store, f"worker-{number}")
        together.wait(DEADLINE_SECONDS)
        while True:
            claims = claim_due(beat, world.planner, crowd.BATCH, DISPATCH).claims
            claimed.extend(claim.run_id for claim in claims)
            messages.extend([world.request(claim) for claim in claims for _ in range(2)])  # each comes twice
            batch: dict[str, StartRequest] = {}
            while messages and len(batch) < crowd.BATCH:
                try:
                    message = messages.popleft() if number % 2 else messages.pop()
                except IndexError:
                    break
                batch[message.run_id] = message
            started.extend(worker.start(batch.values()))
            if not claims and not batch:
                return

    with ThreadPoolExecutor(CROWD) as pool:
        for part in [pool.submit(take_part, number) for number in range(CROWD)]:
            part.result(DEADLINE_SECONDS)
    store.close()
    check_all_started_once(world, Counter(claimed), Counter(started))


@pytest.mark.slow
def test_eight_processes_claim_and_start_each_of_thousands_of_rows_once(place: Place, world: World) -> None:
    many_due(world)
    context = multiprocessing.get_context("spawn")
    meeting = crowd.Meeting(place.dialect().name, place.address, world.namespace, world.now, context.Barrier(CROWD))
    with ProcessPoolExecutor(CROWD, mp_context=context, initializer=crowd.arrive, initargs=(meeting,)) as pool:
        claiming = [pool.submit(crowd.claim_all, f"beat-{number}") for number in range(CROWD)]
        messages = [message for part in claiming for message in part.result(2 * DEADLINE_SECONDS)]
        starting = []
        for number in range(CROWD):
            shuffled = random.Random(number).sample(messages, len(messages))
            starting.append(pool.submit(crowd.start_all, f"worker-{number}", shuffled))
        started = [run_id for part in starting for run_id in part.result(2 * DEADLINE_SECONDS)]
    check_all_started_once(world, Counter(message.run_id for message in messages), Counter(started))

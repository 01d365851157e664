"""Races: threads with stores of their own, on the same jobs at once."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import pytest

from celery_sqlbeat.errors import TransientError
from celery_sqlbeat.model import AddJob, Claim, PauseJob, StartedRun, StartRequest
from celery_sqlbeat.model.lifecycle import DLQ, Ending, after_lost_lease, released
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.records import Guard, Release, RunQuery
from celery_sqlbeat.testing.contract.base import JOBS, Contract
from celery_sqlbeat.testing.contract.releases import LIVE, PLAIN, AppRelease
from celery_sqlbeat.testing.world import LEASE, World, outcomes

THREADS = 4
CROWD = 240  # jobs that a crowd claims
ROWS = 24  # on each of which two sides race
DEADLINE_SECONDS = 120
TRIES = 200  # of a call that a busy store refuses; each of them waits for it by itself

Item = TypeVar("Item")
T = TypeVar("T")
U = TypeVar("U")


class RaceContract(Contract):
    """Rules of what happens at once: of several winners there is one."""

    def test_a_crowd_claims_and_starts_each_of_many_jobs_once(self, world: World) -> None:
        world.write(*(AddJob(world.draft(f"job-{n:04}")) for n in range(CROWD)))
        messages: deque[StartRequest] = deque()
        claimed: list[str] = []
        started: list[str] = []

        def take_part(number: int, store: Store) -> None:
            while True:
                claims = patiently(lambda: world.claim(f"beat-{number}", batch=20, store=store).claims)
                claimed.extend(claim.run_id for claim in claims)
                messages.extend([world.request(claim) for claim in claims for _ in range(2)])  # each comes twice
                batch: dict[str, StartRequest] = {}
                while messages and len(batch) < 20:
                    try:
                        message = messages.popleft() if number % 2 else messages.pop()
                    except IndexError:
                        break
                    batch[message.run_id] = message
                ask = partial(world.ask, *batch.values(), worker=f"worker-{number}", store=store)
                started.extend(patiently(ask))
                if not claims and not batch and len(claimed) >= CROWD:
                    return

        at_once(world, *(lambda store, n=n: take_part(n, store) for n in range(THREADS)))
        assert len(claimed) == CROWD and set(Counter(claimed).values()) == {1}
        assert Counter(started) == Counter(claimed)
        states = Counter(run.state for run in world.store.runs(RunQuery(page_size=2 * CROWD)))
        assert states == {"running": CROWD}

    @pytest.mark.parametrize("fields", JOBS)
    def test_of_many_starts_of_one_message_at_once_one_begins(self, world: World, fields: dict[str, Any]) -> None:
        for claim in many(world, **fields):

            def begin(store: Store, claim: Claim = claim) -> dict[str, StartedRun]:
                return patiently(lambda: world.ask(world.request(claim), store=store))

            assert sum(map(len, at_once(world, *[begin] * THREADS))) == 1

    def test_one_request_asked_by_many_at_once_is_answered_alike(self, world: World) -> None:
        for claim in many(world, 8):
            request = world.request(claim)

            def begin(store: Store, request: StartRequest = request) -> dict[str, StartedRun]:
                return patiently(lambda: world.ask(request, store=store))

            first, *others = at_once(world, *[begin] * THREADS)
            assert first.keys() == {claim.run_id} and all(other == first for other in others)

    def test_of_many_changes_of_one_version_at_once_one_succeeds(self, world: World) -> None:
        names = [world.add() for _ in range(8)]
        pauses = [PauseJob(name, "x", version=1) for name in names]

        def pause(store: Store) -> set[str]:
            return set(one_by_one(pauses, lambda pause: store.write_jobs([pause]).done))

        assert sorted(name for done in at_once(world, *[pause] * THREADS) for name in done) == sorted(names)
        assert {world.job(name).version for name in names} == {2}

    def test_of_many_who_add_one_name_at_once_one_succeeds(self, world: World) -> None:
        drafts = [world.draft(f"job-{n}") for n in range(8)]

        def add(store: Store) -> list[str]:
            return one_by_one(drafts, lambda draft: store.write_jobs([AddJob(draft)]).done)

        added = [name for done in at_once(world, *[add] * THREADS) for name in done]
        assert sorted(added) == [draft.job_name for draft in drafts]

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_start_and_its_giving_back(self, world: World, fields: dict[str, Any]) -> None:
        claims = many(world, **fields)
        began, given = both(world, starting(world, claims), ending(claims, released("no answer"), Guard.UNSTARTED))
        for claim in claims:
            is_begun = claim.run_id in began
            assert world.run(claim.run_id).state == ("running" if is_begun else "scheduled")
            if not fields:
                assert is_begun != (claim.run_id in given)

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_start_and_the_dispatch_of_its_message(self, world: World, fields: dict[str, Any]) -> None:
        claims = many(world, **fields)
        began, _ = both(world, starting(world, claims), ending(claims, Ending("dispatched"), Guard.UNSTARTED))
        assert began.keys() == {claim.run_id for claim in claims}, "it begins in any case"
        assert all(world.finish(run) for run in began.values())
        assert {world.run(claim.run_id).state for claim in claims} == {"success"}

    def test_a_start_and_the_marking_of_its_message(self, world: World) -> None:
        claims = many(world)

        def mark(store: Store) -> set[str]:
            return set(one_by_one(claims, lambda claim: store.mark_published([(claim, LEASE)]).done))

        began, _ = both(world, starting(world, claims), mark)
        assert began.keys() == {claim.run_id for claim in claims}
        assert {world.job(claim.job_name).locked_by for claim in claims} == {"worker-1"}
        assert world.extend(*began.values()) == set()

    @pytest.mark.parametrize("fields", JOBS)
    def test_an_outcome_and_a_takeover(self, world: World, fields: dict[str, Any]) -> None:
        runs = list(world.ask(*map(world.request, many(world, **fields))).values())
        if fields:
            at_once(world, ending(runs, Ending("dispatched"), Guard.UNSTARTED))
        world.later(LEASE)
        leases = world.leases()
        assert len(leases) == ROWS

        def finish(store: Store) -> set[str]:
            return set(one_by_one(outcomes(runs), lambda end: store.finish([end]).done))

        ended, taken = both(world, finish, ending(leases, after_lost_lease(0, 5), Guard.EXPIRED))
        assert ended | taken == {run.run_id for run in runs} and not ended & taken
        for run in runs:
            assert world.run(run.run_id).state == ("success" if run.run_id in ended else "retry")

    def test_a_heartbeat_and_a_takeover(self, world: World) -> None:
        runs = list(world.ask(*map(world.request, many(world))).values())
        world.later(LEASE)
        leases = world.leases()

        def extend(store: Store) -> set[str]:
            return set(one_by_one(runs, lambda run: [] if any(store.extend([(run, LEASE)])) else [run.run_id]))

        kept, taken = both(world, extend, ending(leases, after_lost_lease(0, 5), Guard.EXPIRED))
        assert not kept & taken
        assert world.extend(*runs) == taken
        assert {world.run(run_id).state for run_id in taken} <= {"retry"}

    def test_beats_take_over_and_republish_each_lease_once(self, world: World) -> None:
        claims = many(world)
        world.publish(*claims)
        world.later(LEASE)
        leases = world.leases()

        def republish(store: Store) -> list[str]:
            return one_by_one(leases, lambda lease: store.postpone([(lease, 240.0)], "beat"))

        sent = [run_id for done in at_once(world, *[republish] * THREADS) for run_id in done]
        assert sorted(sent) == sorted(claim.run_id for claim in claims)
        assert {world.job(claim.job_name).republishes for claim in claims} == {1}

    def test_administrators_replay_each_letter_once(self, world: World) -> None:
        runs = list(world.ask(*map(world.request, many(world, 8))).values())
        for run in runs:
            world.finish(run, Ending(DLQ, "retries exhausted", None, 1))
        letters = world.letters()

        def replay(store: Store) -> list[str]:
            return one_by_one(letters, lambda letter: world.replay(letter, store=store))

        made = [run_id for done in at_once(world, *[replay] * THREADS) for run_id in done]
        assert len(made) == len(letters) == 8
        assert Counter(run.state for run in world.store.runs(RunQuery())) == {"dlq": 8, "scheduled": 8}

    def test_beats_of_one_release_import_an_entry_once(self, world: World) -> None:
        entries = {f"job-{n}": {"args": f"[{n}]"} for n in range(50)}

        def bring(store: Store) -> list[str]:
            return patiently(lambda: AppRelease(world, store=store).brings_again(entries))

        added = [name for done in at_once(world, *[bring] * THREADS) for name in done]
        assert sorted(added) == sorted(entries)

    def test_releases_that_come_at_once_agree_on_the_newest(self, world: World) -> None:
        names = [f"v{n}" for n in range(THREADS)]
        for name in names:
            AppRelease(world, name).is_alive()

        def bring(name: str) -> Callable[[Store], object]:
            return lambda store: patiently(lambda: AppRelease(world, name, store=store).brings_again(PLAIN))

        at_once(world, *map(bring, names))
        assert len({world.store.newest_release("shop", name, LIVE).winner for name in names}) == 1


def at_once(world: World, *sides: Callable[[Store], T]) -> list[T]:
    """Let all sides begin at the same moment, each with a store of its own."""
    together = threading.Barrier(len(sides))

    def take_part(side: Callable[[Store], T], store: Store) -> T:
        store.pulse()  # connected by then
        together.wait(DEADLINE_SECONDS)
        return side(store)

    stores = [world.another_store() for _ in sides]
    try:
        with ThreadPoolExecutor(len(sides)) as pool:
            parts = [pool.submit(take_part, side, store) for side, store in zip(sides, stores, strict=True)]
            return [part.result(DEADLINE_SECONDS) for part in parts]
    finally:
        for store in stores:  # a server has few connections, and a test makes many crowds
            store.close()


def both(world: World, first: Callable[[Store], T], second: Callable[[Store], U]) -> tuple[T, U]:
    """Let two sides begin at the same moment."""
    sides: Any = first, second
    one, other = at_once(world, *sides)
    return one, other


def patiently(call: Callable[[], T]) -> T:
    """Make a call again where a store in a crowd says that a retry may help."""
    for _ in range(TRIES):
        try:
            return call()
        except TransientError:
            continue
    return call()


def one_by_one(items: Iterable[Item], call: Callable[[Item], Iterable[T]]) -> list[T]:
    """Make one call after the other; return what they gave."""
    return [result for item in items for result in patiently(partial(call, item))]


def many(world: World, count: int = ROWS, **fields: Any) -> list[Claim]:
    """Add jobs, and claim them."""
    for _ in range(count):
        world.add(**fields)
    claims = world.claim().claims
    assert len(claims) == count
    return claims


def starting(world: World, claims: list[Claim]) -> Callable[[Store], dict[str, StartedRun]]:
    """Return the side that starts runs, one after the other."""

    def begin(store: Store) -> dict[str, StartedRun]:
        started = one_by_one(claims, lambda claim: world.ask(world.request(claim), store=store).values())
        return {run.run_id: run for run in started}

    return begin


def ending(held: list[Any], end: Ending, guard: Guard) -> Callable[[Store], Any]:
    """Return the side that ends runs, one after the other; it asks again where a row is busy."""

    def finish(store: Store) -> set[str]:
        def end_one(claim: Any) -> set[str]:
            release = Release(claim.job_id, claim.run_id, claim.claim_id, claim.fence, end)
            answer = store.finish([release], guard)
            for _ in range(TRIES):
                if answer.busy:
                    answer = store.finish([release], guard)
            return answer.done

        return set(one_by_one(held[::-1], end_one))

    return finish

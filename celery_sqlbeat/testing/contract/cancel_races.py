"""Cancellation of runs whose jobs others hold, or have just read."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from celery_sqlbeat.model import Claim, RefusedStart
from celery_sqlbeat.model.lifecycle import after_lost_lease, after_success, released, was_cancelled
from celery_sqlbeat.model.one_offs import Cancellation, CancelRequest
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.records import Release
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.contract.cancel import ASKED, DONE, cancel
from celery_sqlbeat.testing.contract.races import both, many, one_by_one, patiently
from celery_sqlbeat.testing.world import LEASE, OVERLAP, World, outcome

YEAR = timedelta(days=365)


class CancelRaceContract(Contract):
    """Rules of `cancel` where others hold the job of a run, or have just read it."""

    def is_refused(self, world: World, claim: Claim) -> bool:
        """Return whether a message of this claim may not begin, since its run was cancelled."""
        answer = world.store.start([world.request(claim)], "worker-1")[claim.run_id]
        return isinstance(answer, RefusedStart) and was_cancelled(answer)

    def test_a_message_after_its_last_deadline_does_not_begin(self, world: World) -> None:
        name = world.add(schedule="every 7d")
        claim = world.never_started()
        assert world.states(name) == ["dispatched"]
        assert cancel(world, claim.run_id) == DONE
        assert world.states(name) == ["cancelled"] and self.is_refused(world, claim)

    def test_who_has_read_a_waiting_slot_before_cannot_claim_it(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        assert world.give_back(claim)
        due = world.store.due(10)
        assert cancel(world, claim.run_id) == DONE
        assert world.store.claim(due, world.planner(due), "beat-1", 15.0).claims == []
        assert world.states(name) == ["cancelled"]

    def test_an_extra_slot_ends_while_another_run_holds_the_job(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.add_slot(name)
        (extra,) = [row for row in world.runs(name) if row.state == "scheduled"]
        assert cancel(world, extra.run_id) == DONE
        assert world.extend(run) == set() and world.finish(run)
        assert sorted(world.states(name)) == ["cancelled", "success"] and world.claim().claims == []

    def test_a_manual_run_is_asked_and_ends_as_cancelled(self, world: World) -> None:
        name = world.add(next_run_time=world.noon + YEAR)
        world.add_slot(name)
        run = world.running()
        assert cancel(world, run.run_id) == ASKED
        assert world.finish(run, world.failure(0.0))
        assert world.states(name) == ["cancelled"] and world.claim().claims == []
        assert world.job(name).locked_by is None

    def test_many_are_cancelled_at_once_and_an_unknown_one_is_missing(self, world: World) -> None:
        for _ in range(3):
            world.add()
        claims = world.claim().claims
        running, stopped = world.begin(claims[0]), claims[1]
        unknown = world.ids.random_id()
        requests = [CancelRequest(run_id, "ann", "") for run_id in (running.run_id, stopped.run_id, unknown)]
        assert world.store.cancel(requests) == {running.run_id: ASKED, stopped.run_id: DONE}
        assert world.start(claims[2]) is not None
        assert world.store.cancel([]) == {}

    def test_several_slots_of_one_job_are_cancelled_at_once(self, world: World) -> None:
        name = world.add()
        run = world.running()
        assert world.finish(run, world.failure(3600.0))
        for _ in range(3):
            world.later(1)
            world.add_slot(name)
        run_ids = [row.run_id for row in world.runs(name)]
        answers = world.store.cancel([CancelRequest(run_id, "ann", "") for run_id in run_ids])
        assert answers == dict.fromkeys(run_ids, DONE)
        assert world.claim().claims == [] and world.job(name).retry_at is None

    def test_a_cancelled_claim_that_its_beat_still_holds_is_lost_to_it(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        claim = world.claim_one()
        assert cancel(world, claim.run_id) == DONE
        assert world.dispatch(claim) == set() and world.states(name) == ["cancelled"]
        fence_of_the_next = world.job(name).fence
        assert fence_of_the_next > claim.fence
        forged = Release(claim.job_id, claim.run_id, claim.claim_id, claim.fence, after_success())
        assert world.store.finish([forged]).done == set()

    def check_all_cancelled(self, world: World, run_ids: Iterable[str]) -> None:
        """Check that these runs have ended as cancelled, and that nothing follows them."""
        runs = [world.run(run_id) for run_id in run_ids]
        assert {(run.state, run.due_at) for run in runs} == {("cancelled", None)}
        jobs = [world.job(run.job_name) for run in runs]
        assert {(job.locked_by, job.run_id, job.retry_at) for job in jobs} == {(None, None, None)}
        assert world.claim().claims == []

    def cancelling(self, run_ids: Sequence[str]) -> Callable[[Store], dict[str, Cancellation]]:
        """Return the side that cancels runs, one after the other."""

        def cancel_all(store: Store) -> dict[str, Cancellation]:
            def ask(run_id: str) -> Iterable[tuple[str, Cancellation]]:
                return store.cancel([CancelRequest(run_id, "ann", "")]).items()

            return dict(one_by_one(run_ids, ask))

        return cancel_all

    def test_a_failure_at_the_same_moment_leaves_no_retry(self, world: World) -> None:
        claims = many(world)
        runs = [world.begin(claim) for claim in claims]

        def fail(store: Store) -> list[str]:
            return one_by_one(runs, lambda run: store.finish([outcome(run, world.failure(0.0))]).done)

        answers, ended = both(world, self.cancelling([run.run_id for run in runs]), fail)
        assert set(ended) == set(answers) == {run.run_id for run in runs}
        assert set(answers.values()) <= {DONE, ASKED}
        self.check_all_cancelled(world, answers)

    def test_a_claim_of_what_was_given_back_does_not_outlive_it(self, world: World) -> None:
        claims = many(world)
        assert world.release(claims, released("no broker")).done == {claim.run_id for claim in claims}

        def claim_again(store: Store) -> list[str]:
            return [claim.run_id for claim in patiently(lambda: world.claim(batch=3, store=store)).claims]

        answers, _ = both(world, self.cancelling([claim.run_id for claim in claims]), claim_again)
        assert set(answers.values()) == {DONE}
        self.check_all_cancelled(world, answers)

    def test_a_takeover_at_the_same_moment_leaves_no_retry(self, world: World) -> None:
        claims = many(world, schedule="every 7d")
        for claim in claims:
            world.begin(claim)
        world.later(LEASE + 1)
        leases = world.leases()
        assert len(leases) == len(claims)

        def take_over(store: Store) -> list[str]:
            return one_by_one(leases, lambda lease: world.reclaim(after_lost_lease(0, 5), lease, store=store))

        answers, _ = both(world, self.cancelling([claim.run_id for claim in claims]), take_over)
        assert set(answers.values()) <= {DONE, ASKED}
        for lease in world.leases():  # a beat passes by what is locked just then
            world.reclaim(after_lost_lease(0, 5), lease)
        self.check_all_cancelled(world, answers)

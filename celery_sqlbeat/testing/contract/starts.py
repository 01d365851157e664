"""Starts: one attempt begins at most once, and never while another run holds the job."""

from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import DeleteJob, RefusedStart
from celery_sqlbeat.model.lifecycle import Ending, after_lost_lease, released
from celery_sqlbeat.testing.contract.base import JOBS, Contract
from celery_sqlbeat.testing.world import LEASE, OVERLAP, World


class StartContract(Contract):
    """Rules of `start`."""

    def test_a_start_takes_the_lease_over_for_the_worker(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        world.publish(claim)
        began_at = world.later(1)
        run = world.begin(claim)
        assert (run.run_id, run.claim_id, run.fence) == (claim.run_id, claim.claim_id, claim.fence)
        job = world.job(name)
        assert (job.locked_by, job.started_retry, job.run_id) == ("worker-1", 0, run.run_id)
        assert job.lease_ends_at == world.near(began_at + timedelta(seconds=LEASE))
        assert job.locked_at == world.near(began_at)
        assert job.claimed_at == world.near(world.noon)
        (row,) = world.runs(name)
        assert (row.state, row.started_by, row.started_at) == ("running", "worker-1", world.near(began_at))

    def test_a_started_run_knows_what_its_outcome_depends_on(self, world: World) -> None:
        name = world.add(lock_timeout_minutes=3, policies='{"max_retries": 7, "max_runtime": 9}')
        run = world.running()
        assert (run.lease_seconds, run.max_retries, run.failures, run.lost_leases) == (180, 7, 0, 0)
        assert (run.attempt, run.kind, run.job_name, bool(run.exclusive)) == (1, "schedule", name, True)
        assert (run.job_id, run.max_runtime, run.celery_retries) == (world.job(name).job_id, 9, 0)
        assert run.scheduled_for == world.runs(name)[0].scheduled_for

    def test_a_message_delivered_twice_starts_once(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.begin(claim)
        assert world.start(claim) is None
        assert world.refused(claim) == "a duplicate: its run has started already, and is running"

    def test_a_message_redelivered_to_another_worker_starts_once(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.begin(claim)
        assert world.ask(world.request(claim), worker="worker-2", store=world.another_store()) == {}
        assert world.job(name).locked_by == "worker-1"

    def test_a_message_may_start_before_its_claim_is_marked_published(self, world: World) -> None:
        """The broker was faster than beat's next call."""
        world.add()
        assert world.start(world.claim_one()) is not None

    @pytest.mark.parametrize("fields", JOBS)
    def test_what_began_before_its_claim_was_marked_was_published_by_then(
        self, world: World, fields: dict[str, Any]
    ) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        world.later(0.1)
        run = world.begin(claim)
        world.later(0.1)
        world.publish(claim)
        assert world.finish(run)
        (row,) = world.runs(name)
        assert row.state == "success" and row.published_at == row.started_at

    def test_a_message_may_start_after_its_deadline_as_long_as_nobody_took_the_slot(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.later(LEASE + 30)
        assert world.start(claim) is not None

    @pytest.mark.parametrize("fields", JOBS)
    def test_the_same_request_asked_again_is_answered_the_same(self, world: World, fields: dict[str, Any]) -> None:
        """The answer may be lost on the way; a start whose answer is lost is no lost start."""
        world.add(**fields)
        claim = world.claim_one()
        request = world.request(claim)
        first = world.ask(request)
        assert first.keys() == {claim.run_id}
        assert first[claim.run_id].start_id == request.start_id
        assert world.ask(request, store=world.another_store()) == first

    def test_the_same_request_is_refused_once_the_lease_is_gone(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        request = world.request(claim)
        world.finish(world.ask(request)[claim.run_id])
        assert world.ask(request) == {}

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_retry_by_celery_itself_may_start_the_same_attempt_again(
        self, world: World, fields: dict[str, Any]
    ) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        world.publish(claim)
        world.begin(claim)
        again = world.begin(claim, celery_retries=1)
        assert (again.attempt, again.run_id, again.celery_retries) == (1, claim.run_id, 1)
        assert world.start(claim, celery_retries=1) is None
        assert world.start(claim, celery_retries=0) is None
        assert world.start(claim, celery_retries=2) is not None
        assert world.states(name) == ["running"]

    def test_a_message_is_stale_after_its_claim_was_given_back(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.give_back(claim, "the broker refused it")
        assert world.refused(claim) == "stale: its run is scheduled (the broker refused it)"

    def test_a_message_of_an_earlier_claim_cannot_start_the_run_claimed_again(self, world: World) -> None:
        world.add()
        stale = world.claim_one()
        world.give_back(stale)
        claim = world.claim_one()
        assert claim.run_id == stale.run_id
        assert world.refused(stale) == "stale: its claim is no longer valid"
        assert world.start(claim) is not None

    def test_a_message_is_stale_after_its_slot_was_taken_over(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.later(16)
        world.sweep()
        assert world.start(claim) is None

    def test_a_message_is_stale_after_its_run_was_lost(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.begin(claim)
        world.later(LEASE)
        world.sweep()
        assert world.start(claim) is None
        assert world.start(claim, celery_retries=1) is None

    @pytest.mark.parametrize(
        "ending",
        [Ending("success"), Ending("retry", "failed", 5.0, 1), Ending("cancelled")],
        ids=["success", "retry", "cancelled"],
    )
    def test_an_ended_attempt_may_not_start(self, world: World, ending: Ending) -> None:
        world.add()
        claim = world.claim_one()
        world.publish(claim)
        assert world.finish(world.begin(claim), ending)
        assert world.start(claim) is None
        assert world.start(claim, celery_retries=3) is None

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_start_needs_run_claim_and_fence_each(self, world: World, fields: dict[str, Any]) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        right = world.request(claim)
        assert world.ask(right._replace(claim_id=world.ids.random_id())) == {}
        assert world.ask(right._replace(run_id=world.ids.random_id())) == {}
        assert world.ask(right._replace(fence=claim.fence + 1)) == {}
        assert world.ask(right._replace(fence=claim.fence - 1)) == {}
        assert world.states(name) == ["claimed"]
        assert world.ask(right) != {}

    def test_a_run_that_is_not_known_is_missing_in_the_answer(self, world: World) -> None:
        world.add()
        request = world.request(world.claim_one())._replace(run_id=world.ids.random_id())
        assert world.store.start([request], "worker-1") == {}

    def test_a_refused_start_says_how_its_run_stands(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.begin(claim)
        answer = world.store.start([world.request(claim)], "worker-2")
        assert answer == {claim.run_id: RefusedStart(claim.run_id, "running", None, 1, 1)}

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_worker_of_another_namespace_starts_nothing(self, world: World, fields: dict[str, Any]) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        assert world.sibling().start([world.request(claim)], "stranger") == {}
        assert world.states(name) == ["claimed"]
        assert world.start(claim) is not None

    def test_a_batch_starts_what_may_begin_and_only_that(self, world: World) -> None:
        for _ in range(5):
            world.add()
        claims = world.claim().claims
        world.publish(*claims)
        world.begin(claims[0])
        world.finish(world.begin(claims[1]))
        requests = [world.request(claim) for claim in claims]
        requests[2] = requests[2]._replace(claim_id=world.ids.random_id())
        assert world.ask(*requests).keys() == {claims[3].run_id, claims[4].run_id}

    def test_no_requests_are_no_answers(self, world: World) -> None:
        assert world.store.start([], "worker-1") == {}

    def test_of_two_requests_for_one_run_in_one_batch_one_may_begin(self, world: World) -> None:
        """A broker may deliver a message twice to one worker; its batch must not start both."""
        world.add()
        claim = world.claim_one()
        first, second = world.request(claim), world.request(claim)
        begun = world.ask(first, second)[claim.run_id].start_id
        assert begun in (first.start_id, second.start_id)
        assert bool(world.ask(first)) == (begun == first.start_id)
        assert bool(world.ask(second)) == (begun == second.start_id)

    @pytest.mark.parametrize("fields", JOBS)
    @pytest.mark.parametrize("force", [False, True])
    def test_a_dispatched_run_of_a_deleted_job_never_begins(
        self, world: World, fields: dict[str, Any], force: bool
    ) -> None:
        name = world.add(**fields)
        claim = world.forgotten()
        assert world.write(DeleteJob(name, force=force))
        for _ in range(2):
            assert world.refused(claim) == "its job was deleted: the slot ends as cancelled"
        (row,) = world.runs(name)
        assert (row.state, row.reason) == ("cancelled", "job deleted")

    def test_a_claimed_run_of_a_job_deleted_by_force_never_begins(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        assert world.write(DeleteJob(name, force=True))
        assert world.start(claim) is None
        assert world.states(name) == ["cancelled"]

    def test_a_begun_run_of_a_job_that_is_to_be_deleted_may_be_retried_by_celery(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        claim = world.forgotten()
        world.begin(claim)
        assert world.write(DeleteJob(name))
        assert world.start(claim, celery_retries=1) is not None
        assert world.states(name) == ["running"]

    def test_overlapping_runs_start_without_touching_their_job(self, world: World) -> None:
        name = world.add(policies=OVERLAP, schedule="every 1s")
        claims = []
        for _ in range(3):
            claims.append(world.forgotten())
            world.later(1)
        before = world.job(name)
        assert all(world.start(claim) for claim in claims)
        assert world.job(name)[:-1] == before[:-1]
        assert world.states(name) == ["running"] * 3

    def test_an_overlapping_run_starts_once(self, world: World) -> None:
        world.add(policies=OVERLAP)
        claim = world.claim_one()
        world.begin(claim)
        assert world.start(claim) is None
        world.dispatch(claim)
        assert world.start(claim) is None

    def test_an_overlapping_run_that_ended_may_not_start(self, world: World) -> None:
        world.add(policies=OVERLAP)
        claim = world.forgotten()
        assert world.finish(world.begin(claim), after_lost_lease(0, 5))
        assert world.start(claim) is None
        assert world.start(claim, celery_retries=1) is None

    def test_an_overlapping_run_that_was_un_started_runs_again_under_the_same_attempt(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        claim = world.forgotten()
        run = world.begin(claim)
        assert world.finish(run, released("shutdown"))
        again = world.claim_one()
        assert (again.run_id, again.slot.attempt) == (run.run_id, 1)
        assert again.fence > run.fence
        assert world.start(claim) is None
        assert world.start(again) is not None
        assert world.states(name) == ["running"]

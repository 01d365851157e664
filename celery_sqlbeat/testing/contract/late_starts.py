"""Late starts: of slots that were fired and forgotten, or outlasted their last deadline."""

from collections.abc import Callable

import pytest

from celery_sqlbeat.model import Claim
from celery_sqlbeat.model.lifecycle import left_to_others
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import LEASE, SECOND, World


class LateStartContract(Contract):
    """Rules of `start` for runs whose jobs went on without them."""

    def test_what_was_fired_and_forgotten_starts_late_and_leaves_its_job_alone(self, world: World) -> None:
        """A worker got the extension meanwhile: it runs as stock beat would have it."""
        name = world.add(schedule="every 1s")
        claim = world.forgotten()
        before = world.job(name)
        run = world.begin(claim)
        assert (run.fence, bool(run.exclusive)) == (claim.fence, False)
        assert world.job(name)[:-1] == before[:-1]
        world.later(1)
        assert world.extend(run) == set()
        assert world.claim_one().run_id != claim.run_id
        assert world.finish(run)
        assert world.states(name) == ["success", "claimed"]
        assert world.job(name).next_run_time == before.next_run_time

    def test_a_backlog_of_forgotten_slots_starts_in_one_batch_beside_a_run_that_holds_the_job(
        self, world: World
    ) -> None:
        name = world.add(schedule="every 1s")
        claims = []
        for _ in range(3):
            claims.append(world.forgotten())
            world.later(1)
        holder = world.running()
        started = world.ask(*(world.request(claim) for claim in claims))
        assert started.keys() == {claim.run_id for claim in claims}
        assert world.states(name) == ["running"] * 4
        assert world.job(name).run_id == holder.run_id and world.finish(holder)
        assert all(world.finish(run) for run in started.values())
        assert world.states(name) == ["success"] * 4

    def test_what_was_left_to_other_workers_starts_late_as_what_was_forgotten(self, world: World) -> None:
        name = world.add(schedule="every 120s")
        claim = world.claim_one()
        world.publish(claim)
        world.later(LEASE)
        assert world.reclaim(left_to_others(), world.ended_one()) == {claim.run_id}
        world.running()
        assert world.start(claim) is not None
        assert world.states(name) == ["running", "running"]

    def test_a_forgotten_run_starts_late_only_once(self, world: World) -> None:
        world.add()
        claim = world.forgotten()
        request = world.request(claim)
        first = world.ask(request)
        assert world.start(claim) is None
        assert world.ask(request) == first
        assert world.refused(claim) == "a duplicate: its run has started already, and is running"
        world.finish(first[claim.run_id])
        assert world.refused(claim) == "a duplicate: its run has started already, and is success"

    def test_a_forgotten_run_that_fails_is_tried_again_beside_the_schedule(self, world: World) -> None:
        name = world.add()
        following = world.job(name).next_run_time
        run = world.overlapping()
        following = world.job(name).next_run_time
        assert world.finish(run, world.failure(1.0))
        assert (world.job(name).retry_at, world.job(name).next_run_time) == (None, following)
        world.later(1)
        again = world.claim_one()
        assert (again.slot.attempt, again.slot.failures, again.slot.advances) == (2, 1, False)
        assert again.slot.scheduled_for == run.scheduled_for
        world.publish(again)
        second = world.begin(again)
        assert second.exclusive and world.finish(second)
        assert world.job(name).next_run_time == following
        assert world.claim().claims == []
        assert world.states(name) == ["retry", "success"]

    def test_a_forgotten_run_whose_worker_is_lost_is_tried_again(self, world: World) -> None:
        name = world.add(schedule="every 7d")
        world.overlapping()
        world.later(LEASE)
        world.sweep()
        assert world.claim_one().slot.lost_leases == 1
        assert world.states(name) == ["retry", "claimed"]

    def test_a_late_start_needs_run_claim_and_fence_each(self, world: World) -> None:
        name = world.add()
        claim = world.forgotten()
        right, before = world.request(claim), world.job(name)
        assert world.ask(right._replace(claim_id=world.ids.random_id())) == {}
        assert world.ask(right._replace(fence=claim.fence + 1)) == {}
        assert world.ask(right._replace(fence=claim.fence - 1)) == {}
        assert (world.job(name)[:-1], world.states(name)) == (before[:-1], ["dispatched"])
        assert world.ask(right) != {}

    @pytest.mark.parametrize("dispatch", [World.forgotten, World.never_started])
    def test_a_late_start_may_be_retried_by_celery(self, world: World, dispatch: Callable[[World], Claim]) -> None:
        """The retry's message carries the headers of the first: the fence before the late start."""
        world.add()
        claim = dispatch(world)
        run = world.begin(claim)
        assert world.begin(claim, celery_retries=1).fence == run.fence
        assert world.start(claim, celery_retries=1) is None

    def test_a_late_start_leaves_the_schedule_alone(self, world: World) -> None:
        name = world.add()
        claim = world.forgotten()
        following = world.job(name).next_run_time
        assert following == world.near(world.noon + 60 * SECOND)
        world.later(1)
        assert world.finish(world.begin(claim))
        assert world.job(name).next_run_time == following

    def test_a_leased_slot_that_starts_after_its_last_deadline_takes_the_lease_of_a_free_job(
        self, world: World
    ) -> None:
        name = world.add(schedule="every 7d")
        claim = world.never_started()
        assert (world.states(name), world.runs(name)[0].reason) == (["dispatched"], "never started")
        run = world.begin(claim)
        assert run.exclusive and run.fence > claim.fence
        assert world.job(name).run_id == run.run_id
        assert world.refused(claim) == "a duplicate: its run has started already, and is running"
        assert world.extend(run) == set()
        assert world.finish(run)
        assert world.states(name) == ["success"]

    def test_a_leased_slot_that_comes_after_its_last_deadline_is_skipped_while_another_run_holds_the_job(
        self, world: World
    ) -> None:
        """Its policy forbids to overlap, and its message had its time."""
        name = world.add()
        early = world.never_started()
        run = world.running()
        assert world.refused(early) == "another run holds its job: the slot ends as skipped (overlap)"
        skipped = world.runs(name)[0]
        assert (skipped.state, skipped.reason, skipped.prior_state) == ("skipped", "overlap", "dispatched")
        assert world.finish(run)
        assert world.refused(early) == "another run holds its job: the slot ends as skipped (overlap)"

"""Recovery: after a restore every fence is raised by an epoch; what was given out is void."""

from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import LEASE, World


class RecoveryContract(Contract):
    """Rules of `recover`."""

    def test_every_fence_is_raised_and_keeps_its_order(self, world: World) -> None:
        idle, ran = world.add(schedule="every 7d"), world.add(schedule="every 7d")
        runs = {run.job_name: run for run in world.ask(*map(world.request, world.claim().claims)).values()}
        assert all(world.finish(run) for run in runs.values())
        world.add_slot(ran)
        world.finish(world.running())
        before = [world.job(name).fence for name in (idle, ran)]
        epoch = world.store.recover()
        after = [world.job(name).fence for name in (idle, ran)]
        assert after[0] > max(before) and after[1] - after[0] == before[1] - before[0]
        assert world.store.check_schema().epoch == epoch

    def test_it_may_be_repeated_and_every_epoch_is_later(self, world: World) -> None:
        name = world.add()
        first = world.store.recover()
        fence = world.job(name).fence
        assert world.store.recover() > first
        assert world.job(name).fence > fence

    def test_a_holder_of_before_has_lost_its_lease(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.store.recover()
        assert world.extend(run) == {run.run_id}
        assert not world.finish(run)
        assert world.states(name) == ["running"]

    def test_a_message_of_before_is_stale(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.store.recover()
        assert world.start(claim) is None

    def test_a_beat_of_before_can_mark_and_give_back_nothing(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.store.recover()
        assert world.publish(claim) == set()
        assert world.give_back(claim) == set()

    def test_what_was_read_before_cannot_be_claimed(self, world: World) -> None:
        world.add()
        due = world.store.due(10)
        world.store.recover()
        claimed = world.store.claim(due, world.planner(due), "beat-1", 15.0)
        assert (claimed.claims, claimed.missed) == ([], {due.jobs[0].job_id})
        assert world.claim_one().fence > due.jobs[0].fence + 1

    def test_what_was_held_is_taken_over_when_its_lease_ends(self, world: World) -> None:
        name = world.add()
        before = world.running()
        world.store.recover()
        world.later(LEASE)
        world.sweep()
        assert world.states(name) == ["retry"]
        again = world.running()
        assert (again.attempt, again.scheduled_for) == (2, before.scheduled_for)
        assert again.fence > before.fence and world.finish(again)

    def test_a_message_that_was_queued_is_sent_again_under_the_new_fence(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.store.recover()
        world.later(LEASE)
        lease = world.ended_one()
        assert lease.fence > claim.fence
        assert world.sweep() == {claim.run_id}
        assert world.start(claim._replace(fence=lease.fence)) is not None

    def test_a_message_that_was_dispatched_still_runs_since_nobody_would_send_it_again(self, world: World) -> None:
        world.add()
        claim = world.forgotten()
        world.store.recover()
        run = world.begin(claim)
        assert run.fence == claim.fence
        assert world.finish(run)

    def test_history_that_has_ended_is_left_alone(self, world: World) -> None:
        name = world.add()
        world.finish(world.running())
        before = world.runs(name)
        world.store.recover()
        assert world.runs(name) == before

    def test_a_job_that_is_added_after_it_begins_above_all_fences_of_before(self, world: World) -> None:
        name = world.add()
        world.finish(world.running())
        before = world.job(name).fence
        world.store.recover()
        assert world.job(world.add()).fence > before

"""Leases past their end: who takes them over, and messages that nobody has begun."""

from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.model.lifecycle import MAX_REPUBLISHES, Ending, Republish, after_lost_lease, released
from celery_sqlbeat.testing.contract.base import IDS, JOBS, Contract
from celery_sqlbeat.testing.world import DISPATCH, LEASE, MINUTE, OVERLAP, World

LOST = after_lost_lease(0, 5)


class ReclaimContract(Contract):
    """Rules of `expired`, of `finish` for ended leases, and of `postpone` for queued slots."""

    def test_a_claim_not_published_in_time_belongs_to_whoever_takes_it(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        world.later(DISPATCH - 0.001)
        assert world.leases() == []
        world.later(0.001)
        lease = world.ended_one()
        assert (lease.run_id, lease.published_at, bool(lease.started)) == (claim.run_id, None, False)
        world.sweep("beat-2")
        (row,) = world.runs(name)
        assert (row.state, row.reason) == ("scheduled", "not published in time")
        again = world.claim_one()
        assert (again.run_id, again.slot.attempt) == (claim.run_id, 1)
        assert again.fence > claim.fence
        assert world.start(claim) is None

    def test_a_lease_says_what_its_message_carried(self, world: World) -> None:
        """What a beat must know to send the message again."""
        policies = '{"dead_on": ["ValueError"]}'
        world.add(task_name="shop.close", options='{"queue": "x"}', policies=policies)
        world.claim_one()
        world.later(DISPATCH)
        lease = world.ended_one()
        assert (lease.task_name, lease.options, lease.policies) == ("shop.close", '{"queue": "x"}', policies)

    def test_an_overlapping_slot_not_published_in_time_is_taken_over_too(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        claim = world.claim_one()
        world.later(DISPATCH)
        world.sweep()
        assert world.states(name) == ["scheduled"]
        assert world.claim_one().run_id == claim.run_id

    def test_an_overlapping_run_that_began_outlives_the_beat_that_claimed_it(self, world: World) -> None:
        """The beat was killed between publishing and marking: the job is freed, the run goes on."""
        name = world.add(policies=OVERLAP)
        run = world.begin(world.claim_one())
        world.later(DISPATCH)
        world.sweep()
        assert world.states(name) == ["running"]
        assert (world.job(name).locked_by, world.job(name).next_run_time) == (None, world.noon + MINUTE)
        assert world.claim().claims == []
        assert world.extend(run) == set()

    def test_an_overlapping_run_and_its_jobs_lock_may_end_together(self, world: World) -> None:
        """Both holders died; the run is lost, and its next attempt comes once."""
        name = world.add(policies=OVERLAP)
        run = world.running()
        world.later(2 * LEASE)
        world.sweep()
        world.sweep()
        assert world.states(name) == ["retry"]
        again = world.forgotten()
        assert (again.slot.scheduled_for, again.slot.attempt, again.slot.lost_leases) == (run.scheduled_for, 2, 1)
        following = world.forgotten()
        assert (following.slot.scheduled_for, following.slot.attempt) == (run.scheduled_for + 4 * MINUTE, 1)
        assert world.claim().claims == []

    def test_an_overlapping_run_may_be_lost_before_the_lock_of_its_job_ends(self, world: World) -> None:
        """Its lease is shorter than the time to dispatch, and its worker and its beat are gone."""
        name = world.add(policies='{"overlap": "allow", "lock_timeout": 5}')
        run = world.running()
        world.later(6)
        world.sweep()
        assert world.states(name) == ["retry"]
        assert (world.job(name).locked_by, world.job(name).next_run_time) == (None, world.noon + MINUTE)
        again = world.forgotten()
        assert (again.slot.scheduled_for, again.slot.attempt) == (run.scheduled_for, 2)
        world.later(30)
        assert world.claim().claims == []

    def test_a_queued_slot_is_republished_at_doubling_deadlines_and_then_dispatched(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        world.publish(claim)
        for republishes, seconds in enumerate((120, 240, 480)):
            world.later(seconds - 1)
            assert world.sweep() == set()
            world.later(1)
            lease = world.ended_one()
            assert world.decided(lease) == Republish(2.0 * seconds, True)
            assert lease.republishes == republishes
            assert lease.locked_at == world.now - timedelta(seconds=seconds), "when the last copy was sent"
            assert world.sweep() == {claim.run_id}
        world.later(960)
        assert world.decided(world.ended_one()) == Ending("dispatched", "never started")
        assert world.sweep() == set()
        assert world.states(name) == ["dispatched"]
        assert (world.job(name).locked_by, world.job(name).next_run_time) == (None, world.noon + MINUTE)

    def test_each_copy_of_a_republished_message_may_be_the_one_that_starts(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.later(LEASE)
        world.sweep()
        assert world.start(claim) is not None
        assert world.start(claim) is None

    def test_a_republished_slot_waits_in_the_name_of_who_republished_it(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.later(LEASE)
        world.sweep("beat-2")
        job = world.job(name)
        assert (job.locked_by, job.republishes, job.fence) == ("beat-2", 1, claim.fence)
        assert job.lease_ends_at == world.now + timedelta(seconds=2 * LEASE)

    def test_of_two_beats_that_republish_the_same_slot_one_wins(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.later(LEASE)
        other = world.another_store()
        (mine,), (theirs,) = world.leases(), other.expired(10).leases
        assert world.store.postpone([(mine, 240.0)], "beat-a") == {claim.run_id}
        assert other.postpone([(theirs, 240.0)], "beat-b") == set()

    def test_a_beat_that_slept_over_a_deadline_does_not_republish_on_an_old_count(self, world: World) -> None:
        name = world.add()
        world.publish(world.claim_one())
        world.later(LEASE)
        old = world.ended_one()
        for _ in range(MAX_REPUBLISHES):
            world.sweep()
            world.later(3600)
        assert world.store.postpone([(old, 240.0)], "beat-1") == set()
        assert world.job(name).republishes == MAX_REPUBLISHES

    def test_a_slot_that_began_is_not_republished(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.later(LEASE)
        lease = world.ended_one()
        world.begin(claim)
        before = world.job(name)
        assert world.store.postpone([(lease, 240.0)], "beat-1") == set()
        world.later(LEASE)
        assert world.store.postpone([(lease, 240.0)], "beat-1") == set()
        assert world.job(name)[:-1] == before[:-1]

    def test_a_message_that_expired_ends_its_slot_as_skipped(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.later(LEASE)
        world.sweep(expired=True)
        (row,) = world.runs(name)
        assert (row.state, row.reason, row.prior_state) == ("skipped", "expired", "claimed")
        assert (world.job(name).next_run_time, world.job(name).last_run_time) == (world.noon + MINUTE, None)
        assert world.start(claim) is None

    def test_a_lost_worker_makes_way_for_a_new_attempt(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.later(LEASE)
        lease = world.ended_one()
        assert (bool(lease.started), lease.state, lease.fence) == (True, "running", run.fence)
        assert (lease.job_name, lease.attempt, lease.lost_leases, lease.exclusive) == (name, 1, 0, True)
        assert world.reclaim(LOST, lease) == {run.run_id}
        (row,) = world.runs(name)
        assert (row.state, row.reason, row.lost_leases, row.failures) == ("retry", "lease lost", 1, 0)
        again = world.claim_one()
        assert (again.slot.attempt, again.slot.lost_leases) == (2, 1)
        assert again.run_id != run.run_id and again.fence > run.fence

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_lease_that_was_extended_meanwhile_is_not_taken(self, world: World, fields: dict[str, Any]) -> None:
        name = world.add(**fields)
        run = world.overlapping() if fields else world.running()
        world.later(LEASE)
        lease = world.ended_one()
        world.extend(run)
        before = world.job(name)[:-1], world.runs(name)
        assert world.reclaim(LOST, lease) == set()
        assert (world.job(name)[:-1], world.runs(name)) == before
        assert world.extend(run) == set()

    def test_of_two_beats_that_take_the_same_lease_one_wins(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.later(LEASE)
        other = world.another_store()
        (seen,) = other.expired(10).leases
        assert world.reclaim(LOST, world.ended_one()) == {run.run_id}
        assert world.reclaim(LOST, seen, store=other) == set()
        assert world.runs(name)[0].lost_leases == 1

    @pytest.mark.parametrize(
        "ending",
        [released("not published in time"), Ending("dispatched"), Ending("skipped")],
        ids=["scheduled", "dispatched", "skipped"],
    )
    def test_a_beat_that_slept_cannot_end_a_run_that_began_meanwhile(self, world: World, ending: Ending) -> None:
        """It saw a slot nobody had started; when it writes, the run's worker has died."""
        name = world.add()
        claim = world.claim_one()
        world.later(DISPATCH)
        seen = world.ended_one()
        world.begin(claim)
        world.later(LEASE)
        assert world.reclaim(ending, seen) == set()
        assert world.states(name) == ["running"]
        world.sweep()
        assert world.states(name) == ["retry"]

    @pytest.mark.parametrize("field", IDS)
    def test_taking_a_lease_needs_run_claim_and_fence_each(self, world: World, field: str) -> None:
        name = world.add()
        claim = world.claim_one()
        world.publish(claim)
        world.later(LEASE)
        wrong: dict[str, Any] = {field: claim.fence - 1 if field == "fence" else world.ids.random_id()}
        lease = world.ended_one()._replace(**wrong)
        before = world.job(name)[:-1], world.runs(name)
        assert world.store.postpone([(lease, 240.0)], "beat-1") == set()
        for ending in (released("late"), Ending("dispatched"), Ending("skipped", "expired")):
            assert world.reclaim(ending, lease) == set()
        assert (world.job(name)[:-1], world.runs(name)) == before

    def test_leases_of_another_namespace_are_not_seen(self, world: World) -> None:
        world.add()
        world.running()
        world.later(LEASE)
        assert world.sibling().expired(10).leases == []
        assert len(world.leases()) == 1

    def test_no_more_leases_are_read_than_asked_for(self, world: World) -> None:
        for fields in ({}, {}, {"policies": OVERLAP}, {"policies": OVERLAP}):
            world.add(**fields)
        claims = world.claim().claims
        world.ask(*(world.request(claim) for claim in claims))
        world.dispatch(*(claim for claim in claims if not claim.exclusive))
        world.later(LEASE)
        assert [len(world.leases(most)) for most in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 4]

    def test_an_overlapping_run_that_was_lost_comes_again_through_the_outbox(self, world: World) -> None:
        name = world.add(policies=OVERLAP, schedule="every 7d")
        run = world.overlapping()
        world.later(LEASE)
        world.sweep()
        (row,) = world.runs(name)
        assert (row.state, row.due_at) == ("retry", world.now)
        assert not world.finish(run)
        again = world.forgotten()
        assert (again.slot.scheduled_for, again.slot.attempt, again.slot.lost_leases) == (run.scheduled_for, 2, 1)
        assert world.claim().claims == []
        assert world.begin(again).attempt == 2

    def test_a_lock_that_stands_for_a_run_is_no_orphan(self, world: World) -> None:
        name = world.add()
        world.running()
        world.later(2 * LEASE)
        assert world.store.release_orphan_locks(1.0) == []
        assert world.job(name).locked_by == "worker-1"

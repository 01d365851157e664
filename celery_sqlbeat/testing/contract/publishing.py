"""Between claim and start: published, given back, failed, skipped, or fired and forgotten."""

from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.model.lifecycle import (
    CANNOT_BE_PUBLISHED,
    Backoff,
    Ending,
    after_refusal,
)
from celery_sqlbeat.store.records import Guard, Recorded
from celery_sqlbeat.testing.contract.base import IDS, JOBS, Contract
from celery_sqlbeat.testing.world import DISPATCH, HOUR, LEASE, MINUTE, OVERLAP, SECOND, World


class PublishingContract(Contract):
    """Rules of `mark_published`, and of `finish` for runs that no worker has begun."""

    def test_what_was_published_waits_for_its_start_until_a_deadline(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        at = world.later(1)
        assert world.store.mark_published([(claim, 300)]) == Recorded({claim.run_id}, set())
        job = world.job(name)
        assert job.published_at == world.near(at)
        assert job.lease_ends_at == job.published_at + timedelta(seconds=300)
        assert (job.locked_by, job.republishes) == ("beat-1", 0)

    @pytest.mark.parametrize("fields", JOBS)
    def test_marking_never_moves_a_started_run_backwards(self, world: World, fields: dict[str, Any]) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        world.begin(claim)
        before = world.job(name)[:-1], world.runs(name)
        world.later(0.1)
        world.publish(claim)
        if not fields:
            assert (world.job(name)[:-1], world.runs(name)) == before
        assert world.states(name) == ["running"]

    def test_marking_changes_nothing_once_the_claim_is_lost(self, world: World) -> None:
        name = world.add()
        stale = world.claim_one()
        world.later(DISPATCH)
        world.sweep("beat-2")
        claim = world.claim_one()
        before = world.job(name)
        world.later(1)
        assert world.store.mark_published([(stale, LEASE)]) == Recorded(set(), set())
        assert world.job(name)[:-1] == before[:-1]
        assert world.publish(claim) == {claim.run_id}

    def test_nothing_to_record_records_nothing(self, world: World) -> None:
        assert world.store.mark_published([]) == Recorded(set(), set())
        for guard in Guard:
            assert world.store.finish([], guard) == Recorded(set(), set())
        assert world.store.postpone([], "beat-1") == set()

    @pytest.mark.parametrize("fields", JOBS)
    @pytest.mark.parametrize("field", IDS)
    def test_every_write_of_a_beat_needs_run_claim_and_fence_each(
        self, world: World, field: str, fields: dict[str, Any]
    ) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        wrong: dict[str, Any] = {field: claim.fence - 1 if field == "fence" else world.ids.random_id()}
        forged = claim._replace(**wrong)
        before = world.job(name)[:-1], world.runs(name)
        assert world.publish(forged) == set()
        assert world.dispatch(forged) == set()
        assert world.give_back(forged) == set()
        assert world.release([forged], Ending("skipped", "x")).done == set()
        assert (world.job(name)[:-1], world.runs(name)) == before
        assert world.publish(claim) == {claim.run_id}

    # Giving back

    def test_what_was_given_back_is_due_again_at_once_under_the_same_attempt(self, world: World) -> None:
        name = world.add()
        slot = world.job(name).next_run_time
        claim = world.claim_one()
        assert world.give_back(claim, "the broker is away") == {claim.run_id}
        (row,) = world.runs(name)
        assert (row.state, row.reason, row.attempt) == ("scheduled", "the broker is away", 1)
        again = world.claim_one()
        assert (again.run_id, again.slot.attempt, again.slot.scheduled_for) == (claim.run_id, 1, slot)
        assert again.fence > claim.fence and again.claim_id != claim.claim_id

    def test_what_was_given_back_may_be_due_again_later(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        world.give_back(claim, seconds=8.0)
        assert world.claim().jobs_read == 0
        world.later(8)
        assert world.claim_one().run_id == claim.run_id

    def test_what_a_worker_has_started_is_not_given_back(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        run = world.begin(claim)
        before = world.job(name)[:-1], world.runs(name)
        assert world.give_back(claim) == set()
        assert (world.job(name)[:-1], world.runs(name)) == before
        assert world.finish(run)

    def test_giving_back_an_overlapping_run_that_began_frees_its_job_only(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        claim = world.claim_one()
        run = world.begin(claim)
        world.give_back(claim)
        job = world.job(name)
        assert (job.locked_by, job.retry_at) == (None, None)
        assert job.next_run_time == world.near(world.noon + MINUTE)
        assert world.states(name) == ["running"]
        assert world.claim().claims == []
        assert world.extend(run) == set()
        assert world.finish(run)

    def test_giving_back_a_slot_twice_or_late_changes_nothing(self, world: World) -> None:
        name = world.add()
        stale = world.claim_one()
        world.give_back(stale, "once")
        world.claim_one()
        before = world.job(name)[:-1], world.runs(name)
        assert world.release([stale], Ending("scheduled", "twice", 0.0)) == Recorded(set(), set())
        assert (world.job(name)[:-1], world.runs(name)) == before

    def test_an_overlapping_slot_given_back_comes_again_once(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        claim = world.claim_one()
        world.give_back(claim)
        again = world.forgotten()
        assert again.run_id == claim.run_id
        assert world.claim().claims == []
        assert world.states(name) == ["dispatched"]

    # What can never be published

    @pytest.mark.parametrize("fields", JOBS)
    def test_what_cannot_be_published_is_a_failed_attempt_that_another_one_follows(
        self, world: World, fields: dict[str, Any]
    ) -> None:
        name = world.add(**fields)
        slot = world.job(name).next_run_time
        claim = world.claim_one()
        ending = after_refusal(0, 3, Backoff(8.0), lambda: 1.0, "TypeError: y()", "Traceback ...")
        assert world.release([claim], ending) == Recorded({claim.run_id}, set())
        (row,) = world.runs(name)
        assert (row.state, row.prior_state, row.failures) == ("retry", "failed", 1)
        assert (row.error, row.traceback, row.reason) == ("TypeError: y()", "Traceback ...", CANNOT_BE_PUBLISHED)
        assert (row.published_at, row.started_at, row.finished_at is None) == (None, None, False)
        job = world.job(name)
        assert (job.locked_by, job.next_run_time) == (None, slot)
        assert job.retry_at == row.finished_at + 8 * SECOND if row.finished_at else False
        assert world.claim().claims == []
        world.later(8)
        again = world.claim_one()
        assert (again.slot.attempt, again.slot.failures, again.slot.scheduled_for) == (2, 1, slot)
        assert again.run_id != claim.run_id and again.fence > claim.fence

    @pytest.mark.parametrize("fields", JOBS)
    def test_what_still_cannot_be_published_ends_as_a_dead_letter_and_its_job_goes_on(
        self, world: World, fields: dict[str, Any]
    ) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        ending = after_refusal(3, 3, Backoff(), lambda: 1.0, "QueueNotFound: 'x'")
        assert world.release([claim], ending).done == {claim.run_id}
        (letter,) = world.letters()
        assert (letter.run_id, letter.error, letter.prior_state) == (claim.run_id, "QueueNotFound: 'x'", "failed")
        job = world.job(name)
        assert (job.locked_by, job.retry_at) == (None, None)
        assert job.next_run_time == world.near(world.noon + MINUTE)

    def test_an_extra_slot_that_cannot_be_published_is_tried_again_from_the_outbox(self, world: World) -> None:
        name = world.add(next_run_time=world.noon + HOUR)
        world.add_slot(name)
        claim = world.claim_one()
        world.release([claim], after_refusal(0, 3, Backoff(8.0), lambda: 1.0, "TypeError: y()"))
        assert world.claim().claims == []
        world.later(8)
        again = world.claim_one()
        assert (again.slot.attempt, again.slot.failures, again.slot.advances) == (2, 1, False)

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_run_that_a_worker_has_started_does_not_fail_for_its_beat(
        self, world: World, fields: dict[str, Any]
    ) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        world.begin(claim)
        before = world.runs(name)
        world.release([claim], after_refusal(0, 3, Backoff(), lambda: 1.0, "TypeError: y()"))
        assert world.runs(name) == before

    # Fire and forget

    def test_a_dispatched_slot_lets_its_job_go_on_at_once(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        at = world.later(1)
        assert world.dispatch(claim) == {claim.run_id}
        job, (row,) = world.job(name), world.runs(name)
        assert (job.locked_by, job.run_id) == (None, None)
        assert job.next_run_time == world.near(world.noon + MINUTE)
        assert job.last_run_time == row.published_at == world.near(at)
        assert (row.state, row.prior_state) == ("dispatched", "claimed")

    def test_a_slot_that_the_shop_did_not_want_to_send_is_over_and_its_job_goes_on(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        assert world.release([claim], Ending("cancelled", "not sent")).done == {claim.run_id}
        job, (row,) = world.job(name), world.runs(name)
        assert (job.locked_by, job.last_run_time) == (None, None)
        assert job.next_run_time == world.near(world.noon + MINUTE)
        assert (row.state, row.reason) == ("cancelled", "not sent")

    def test_a_slot_that_began_is_not_dispatched(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        run = world.begin(claim)
        assert world.dispatch(claim) == set()
        assert world.states(name) == ["running"]
        assert world.finish(run)

    def test_dispatching_after_the_claim_was_lost_changes_nothing(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        world.later(DISPATCH)
        world.sweep()
        before = world.job(name)[:-1], world.runs(name)
        assert world.dispatch(claim) == set()
        assert (world.job(name)[:-1], world.runs(name)) == before

    def test_an_overlapping_run_that_began_goes_on_when_its_job_is_dispatched(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        claim = world.claim_one()
        run = world.begin(claim)
        world.dispatch(claim)
        assert world.states(name) == ["running"]
        job = world.job(name)
        assert (job.locked_by, job.next_run_time) == (None, world.near(world.noon + MINUTE))
        assert world.finish(run)
        assert world.states(name) == ["success"]

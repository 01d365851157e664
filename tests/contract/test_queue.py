"""Between claim and start.

Publishing, giving back, republishing, dispatching, taking over, and when to wake.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import Claimable, HeldLease, PauseJob
from celery_sqlbeat.model.lifecycle import (
    CANNOT_BE_PUBLISHED,
    MAX_REPUBLISHES,
    UNKNOWN_TASK,
    Backoff,
    Ending,
    Republish,
    after_lost_lease,
    after_refusal,
    released,
    released_unknown,
)
from tests.support.world import DISPATCH, LEASE, NOON, OVERLAP, World, as_instant, earliest

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def ended_one(world: World) -> HeldLease:
    """Return the only lease that has ended."""
    (lease,) = world.beat.ended(10)
    return lease


# Marking what was published


def test_what_was_published_waits_for_its_start_until_a_deadline(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    assert world.instant(name, "leaseendsat") == NOON + timedelta(seconds=DISPATCH)
    world.later(2)
    assert world.beat.mark_published([(claim, 300)]).done == {claim.run_id}
    assert world.instant(name, "publishedat") == world.now
    assert world.instant(name, "leaseendsat") == world.now + timedelta(seconds=300)
    assert world.job(name)["lockedby"] == "beat-1"


def test_marking_never_moves_a_started_run_backwards(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.start(claim)
    before = world.job(name), world.runs(name)
    world.later(3)
    assert world.publish(claim) == set()
    assert (world.job(name), world.runs(name)) == before


def test_marking_changes_nothing_once_the_claim_is_lost(world: World) -> None:
    name = world.add()
    stale = world.claim_one()
    world.later(DISPATCH)
    world.sweep(world.store.for_beat("beat-2"))
    claim = world.claim_one()
    before = world.job(name)
    world.later(1)
    assert world.publish(stale) == set()
    assert world.job(name) == before
    assert world.publish(claim) == {claim.run_id}


def test_marking_nothing_marks_nothing(world: World) -> None:
    assert world.publish() == set()
    assert world.beat.mark_dispatched([]).done == set()
    assert world.beat.release_claims([], "nothing").done == set()
    assert world.beat.postpone_start_deadline([]) == set()
    assert world.beat.reclaim([]) == set()


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
@pytest.mark.parametrize("field", ["run_id", "claim_id", "fence"])
def test_every_write_of_a_beat_needs_run_claim_and_fence_each(
    world: World, field: str, columns: Mapping[str, Any]
) -> None:
    name = world.add(**columns)
    claim = world.claim_one()
    wrong: dict[str, Any] = {field: claim.fence - 1 if field == "fence" else world.ids.random_id()}
    forged = claim._replace(**wrong)
    before = world.job(name), world.runs(name)
    assert world.publish(forged) == set()
    assert world.beat.mark_dispatched([forged]).done == set()
    assert world.beat.release_claims([forged], "no broker").done == set()
    assert (world.job(name), world.runs(name)) == before
    world.beat.mark_published([(claim, LEASE)])
    world.later(LEASE)
    lease = ended_one(world)._replace(**wrong)
    before = world.job(name), world.runs(name)
    assert world.beat.postpone_start_deadline([(lease, 240)]) == set()
    for ending in (released("late"), Ending("dispatched"), Ending("skipped", "expired")):
        assert world.beat.reclaim([(lease, ending)]) == set()
    assert (world.job(name), world.runs(name)) == before


# Giving back


def test_what_was_given_back_is_due_again_at_once_under_the_same_attempt(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    assert world.beat.release_claims([claim], "the broker is away").done == {claim.run_id}
    (row,) = world.runs(name)
    assert (row["state"], row["reason"], row["attempt"]) == ("scheduled", "the broker is away", 1)
    again = world.claim_one()
    assert (again.run_id, again.slot.attempt, again.slot.scheduled_for) == (claim.run_id, 1, NOON)
    assert again.fence > claim.fence and again.claim_id != claim.claim_id


def test_what_a_worker_has_started_is_not_given_back(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    run = world.start(claim)
    before = world.job(name), world.runs(name)
    assert world.beat.release_claims([claim], "no answer from the broker").done == set()
    assert (world.job(name), world.runs(name)) == before
    assert run is not None and world.finish(run)


def test_giving_back_an_overlapping_run_that_began_frees_its_job_only(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    run = world.start(claim)
    world.beat.release_claims([claim], "no answer from the broker")
    job = world.job(name)
    assert (job["lockedby"], job["retryat"], world.instant(name, "nextruntime")) == (None, None, NOON + MINUTE)
    assert world.states(name) == ["running"]
    assert world.claim().claims == []
    assert run is not None and world.worker.extend([(run, LEASE)]).lost == set()
    assert world.finish(run)


def test_giving_back_a_slot_twice_or_late_changes_nothing(world: World) -> None:
    name = world.add()
    stale = world.claim_one()
    world.beat.release_claims([stale], "once")
    world.claim_one()
    before = world.job(name), world.runs(name)
    assert world.beat.release_claims([stale], "twice").done == set()
    assert (world.job(name), world.runs(name)) == before


def test_an_overlapping_slot_given_back_comes_again_once(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    world.beat.release_claims([claim], "the broker is away")
    again = world.claim_one()
    assert again.run_id == claim.run_id
    world.beat.mark_dispatched([again])
    world.later(30)
    assert world.claim().claims == []
    assert world.states(name) == ["dispatched"]


# What can never be published


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_what_cannot_be_published_is_a_failed_attempt_that_another_one_follows(
    world: World, columns: Mapping[str, Any]
) -> None:
    name = world.add(**columns)
    claim = world.claim_one()
    world.later(1)
    ending = after_refusal(0, 3, Backoff(8.0), lambda: 1.0, "TypeError: y()", "Traceback ...")
    assert world.beat.fail([(claim, ending)]).done == {claim.run_id}
    (row,) = world.runs(name)
    assert (row["state"], row["priorstate"], row["failures"]) == ("retry", "failed", 1)
    assert (row["error"], row["traceback"], row["reason"]) == ("TypeError: y()", "Traceback ...", CANNOT_BE_PUBLISHED)
    assert (row["publishedat"], row["startedat"], as_instant(row["finishedat"])) == (None, None, world.now)
    job = world.job(name)
    assert (job["lockedby"], world.instant(name, "nextruntime")) == (None, NOON)
    assert world.instant(name, "retryat") == world.now + 8 * SECOND
    assert world.claim().claims == []
    world.later(8)
    again = world.claim_one()
    assert (again.slot.attempt, again.slot.failures, again.slot.scheduled_for) == (2, 1, NOON)
    assert again.run_id != claim.run_id and again.fence > claim.fence


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_what_still_cannot_be_published_ends_as_a_dead_letter_and_its_job_goes_on(
    world: World, columns: Mapping[str, Any]
) -> None:
    name = world.add(**columns)
    claim = world.claim_one()
    ending = after_refusal(3, 3, Backoff(), lambda: 1.0, "QueueNotFound: 'x'")
    assert world.beat.fail([(claim, ending)]).done == {claim.run_id}
    (letter,) = world.letters()
    assert (letter.run_id, letter.error, letter.prior_state) == (claim.run_id, "QueueNotFound: 'x'", "failed")
    job = world.job(name)
    assert (job["lockedby"], job["retryat"], world.instant(name, "nextruntime")) == (None, None, NOON + MINUTE)


def test_an_extra_slot_that_cannot_be_published_is_tried_again_from_the_outbox(world: World) -> None:
    name = world.add(NextRunTime=NOON + 60 * MINUTE)
    world.add_slot(world.job(name)["id"])
    claim = world.claim_one()
    world.beat.fail([(claim, after_refusal(0, 3, Backoff(8.0), lambda: 1.0, "TypeError: y()"))])
    assert world.claim().claims == []
    world.later(8)
    again = world.claim_one()
    assert (again.slot.attempt, again.slot.failures, again.slot.advances) == (2, 1, False)


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_run_that_a_worker_has_started_does_not_fail_for_its_beat(world: World, columns: Mapping[str, Any]) -> None:
    name = world.add(**columns)
    claim = world.claim_one()
    world.start(claim)
    before = world.runs(name)
    world.beat.fail([(claim, after_refusal(0, 3, Backoff(), lambda: 1.0, "TypeError: y()"))])
    assert world.runs(name) == before


# Fire and forget


def test_a_dispatched_slot_lets_its_job_go_on_at_once(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.later(2)
    assert world.beat.mark_dispatched([claim]).done == {claim.run_id}
    job, (row,) = world.job(name), world.runs(name)
    assert (job["lockedby"], world.instant(name, "nextruntime")) == (None, NOON + MINUTE)
    assert world.instant(name, "lastruntime") == world.now
    assert (row["state"], row["priorstate"]) == ("dispatched", "claimed")
    assert as_instant(row["publishedat"]) == world.now


def test_a_slot_that_the_shop_did_not_want_to_send_is_over_and_its_job_goes_on(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    assert world.beat.cancel([claim], "apply_entry sent nothing").done == {claim.run_id}
    job, (row,) = world.job(name), world.runs(name)
    assert (job["lockedby"], world.instant(name, "nextruntime")) == (None, NOON + MINUTE)
    assert (row["state"], row["reason"]) == ("cancelled", "apply_entry sent nothing")
    assert job["lastruntime"] is None


def test_a_slot_that_began_is_not_dispatched(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    run = world.start(claim)
    assert world.beat.mark_dispatched([claim]).done == set()
    assert world.states(name) == ["running"]
    assert run is not None and world.finish(run)


def test_dispatching_after_the_claim_was_lost_changes_nothing(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.later(DISPATCH)
    world.sweep()
    before = world.job(name), world.runs(name)
    assert world.beat.mark_dispatched([claim]).done == set()
    assert (world.job(name), world.runs(name)) == before


def test_an_overlapping_run_that_began_goes_on_when_its_job_is_dispatched(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    run = world.start(claim)
    world.beat.mark_dispatched([claim])
    assert world.states(name) == ["running"]
    assert (world.job(name)["lockedby"], world.instant(name, "nextruntime")) == (None, NOON + MINUTE)
    assert run is not None and world.finish(run)
    assert world.states(name) == ["success"]


# A claim that nobody published


def test_a_claim_not_published_in_time_belongs_to_whoever_takes_it(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    other = world.store.for_beat("beat-2")
    world.later(DISPATCH - 0.001)
    assert other.ended(10) == []
    world.later(0.001)
    lease = ended_one(world)
    assert (lease.run_id, lease.published_at, bool(lease.started)) == (claim.run_id, None, False)
    world.sweep(other)
    (row,) = world.runs(name)
    assert (row["state"], row["reason"]) == ("scheduled", "not published in time")
    (again,) = world.claim(other).claims
    assert (again.run_id, again.slot.attempt) == (claim.run_id, 1)
    assert again.fence > claim.fence
    assert world.start(claim) is None


def test_an_overlapping_slot_not_published_in_time_is_taken_over_too(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    world.later(DISPATCH)
    world.sweep()
    assert world.states(name) == ["scheduled"]
    assert world.claim_one().run_id == claim.run_id


def test_an_overlapping_run_that_began_outlives_the_beat_that_claimed_it(world: World) -> None:
    """The beat was killed between publishing and marking: the job is freed, the run goes on."""
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    run = world.start(claim)
    world.later(DISPATCH)
    world.sweep()
    assert world.states(name) == ["running"]
    assert (world.job(name)["lockedby"], world.instant(name, "nextruntime")) == (None, NOON + MINUTE)
    assert world.claim().claims == []
    assert run is not None and world.worker.extend([(run, LEASE)]).lost == set()


def test_an_overlapping_run_and_its_jobs_lock_may_end_together(world: World) -> None:
    """Both holders died; the run is lost, and its next attempt comes once."""
    name = world.add(Policies=OVERLAP)
    run = world.running()
    world.later(2 * LEASE)
    world.sweep()
    world.sweep()
    assert world.states(name) == ["retry"]
    again = world.claim_one()
    assert (again.slot.scheduled_for, again.slot.attempt, again.slot.lost_leases) == (run.scheduled_for, 2, 1)
    world.beat.mark_dispatched([again])
    following = world.claim_one()
    assert (following.slot.scheduled_for, following.slot.attempt) == (run.scheduled_for + 4 * MINUTE, 1)
    world.beat.mark_dispatched([following])
    assert world.claim().claims == []


def test_an_overlapping_run_may_be_lost_before_the_lock_of_its_job_ends(world: World) -> None:
    """Its lease is shorter than the time to dispatch, and both its worker and its beat are gone."""
    name = world.add(Policies='{"overlap": "allow", "lock_timeout": 5}')
    run = world.running()
    world.later(6)
    world.sweep()
    assert world.states(name) == ["retry"]
    assert (world.job(name)["lockedby"], world.instant(name, "nextruntime")) == (None, NOON + MINUTE)
    again = world.claim_one()
    assert (again.slot.scheduled_for, again.slot.attempt) == (run.scheduled_for, 2)
    world.beat.mark_dispatched([again])
    world.later(30)
    assert world.claim().claims == []


# The queue


def test_a_queued_slot_is_republished_at_doubling_deadlines_and_then_dispatched(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.publish(claim)
    for republishes, seconds in enumerate((120, 240, 480)):
        world.later(seconds - 1)
        assert world.sweep() == set()
        world.later(1)
        lease = ended_one(world)
        assert world.decided(lease) == Republish(2.0 * seconds, True)
        assert lease.republishes == republishes
        assert lease.locked_at == world.now - timedelta(seconds=seconds), "when the last copy was sent"
        assert world.sweep() == {claim.run_id}
    world.later(960)
    assert world.decided(ended_one(world)) == Ending("dispatched", "never started")
    assert world.sweep() == set()
    assert world.states(name) == ["dispatched"]
    assert world.job(name)["lockedby"] is None
    assert world.instant(name, "nextruntime") == NOON + MINUTE


def test_each_copy_of_a_republished_message_may_be_the_one_that_starts(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.later(LEASE)
    world.sweep()
    assert world.start(claim) is not None
    assert world.start(claim) is None


def test_a_republished_slot_waits_in_the_name_of_who_republished_it(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.later(LEASE)
    world.sweep(world.store.for_beat("beat-2"))
    job = world.job(name)
    assert (job["lockedby"], job["republishes"], job["fence"]) == ("beat-2", 1, claim.fence)
    assert world.instant(name, "leaseendsat") == world.now + timedelta(seconds=2 * LEASE)


def test_of_two_beats_that_republish_the_same_slot_one_wins(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.later(LEASE)
    beats = [world.store.for_beat("beat-a"), world.store.for_beat("beat-b")]
    seen = [beat.ended(10) for beat in beats]
    answers = [beat.postpone_start_deadline([(lease, 240)]) for beat, (lease,) in zip(beats, seen, strict=True)]
    assert answers == [{claim.run_id}, set()]


def test_a_beat_that_slept_over_a_deadline_does_not_republish_on_an_old_count(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.later(LEASE)
    old = ended_one(world)
    for _ in range(MAX_REPUBLISHES):
        world.sweep()
        world.later(3600)
    assert world.beat.postpone_start_deadline([(old, 240)]) == set()
    assert world.job(name)["republishes"] == MAX_REPUBLISHES


def test_a_slot_that_began_is_not_republished(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.later(LEASE)
    lease = ended_one(world)
    world.start(claim)
    before = world.job(name)
    assert world.beat.postpone_start_deadline([(lease, 240)]) == set()
    world.later(LEASE)
    assert world.beat.postpone_start_deadline([(lease, 240)]) == set()
    assert world.job(name) == before


def test_a_message_that_expired_ends_its_slot_as_skipped(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.later(LEASE)
    world.sweep(expired=True)
    (row,) = world.runs(name)
    assert (row["state"], row["reason"], row["priorstate"]) == ("skipped", "expired", "claimed")
    assert world.instant(name, "nextruntime") == NOON + MINUTE
    assert world.job(name)["lastruntime"] is None
    assert world.start(claim) is None


def test_without_a_worker_that_has_the_extension_the_slot_waits_without_a_new_message(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.later(LEASE)
    assert world.decided(ended_one(world), can_republish=False) == Republish(2 * LEASE, False)


# Taking over


def test_a_lost_worker_makes_way_for_a_new_attempt(world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(LEASE)
    lease = ended_one(world)
    assert (bool(lease.started), lease.state, lease.fence) == (True, "running", run.fence)
    assert world.beat.reclaim([(lease, after_lost_lease(0, 5))]) == {run.run_id}
    (row,) = world.runs(name)
    assert (row["state"], row["reason"], row["lostleases"], row["failures"]) == ("retry", "lease lost", 1, 0)
    again = world.claim_one()
    assert (again.slot.attempt, again.slot.lost_leases) == (2, 1)
    assert again.run_id != run.run_id and again.fence > run.fence


def test_a_slot_whose_workers_die_again_and_again_is_a_dead_letter(world: World) -> None:
    name = world.add()
    for _ in range(6):
        world.running()
        world.later(LEASE)
        world.sweep()
    assert world.states(name) == ["retry"] * 5 + ["dlq"]
    assert world.instant(name, "nextruntime") == NOON + timedelta(seconds=5 * LEASE) + MINUTE


def test_a_lease_that_was_extended_meanwhile_is_not_taken(world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(LEASE)
    lease = ended_one(world)
    world.worker.extend([(run, LEASE)])
    before = world.job(name), world.runs(name)
    assert world.beat.reclaim([(lease, after_lost_lease(0, 5))]) == set()
    assert (world.job(name), world.runs(name)) == before


def test_an_overlapping_lease_that_was_extended_meanwhile_is_not_taken(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    run = world.running()
    world.later(LEASE)
    leases = world.beat.ended(10)
    world.worker.extend([(run, LEASE)])
    world.beat.reclaim([(lease, after_lost_lease(0, 5)) for lease in leases])
    assert world.states(name) == ["running"]
    assert world.worker.extend([(run, LEASE)]).lost == set()


def test_grace_gives_living_workers_the_first_word(world: World) -> None:
    world.add()
    run = world.running()
    world.later(LEASE + 20)
    assert world.beat.ended(10, grace_seconds=30) == []
    (lease,) = world.beat.ended(10)
    assert world.beat.reclaim([(lease, after_lost_lease(0, 5))], grace_seconds=30) == set()
    assert world.beat.ended(10, grace_seconds=20) == [lease]
    assert world.beat.reclaim([(lease, after_lost_lease(0, 5))], grace_seconds=20) == {run.run_id}


def test_of_two_beats_that_take_the_same_lease_one_wins(world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(LEASE)
    first, second = world.store.for_beat("beat-a"), world.store.for_beat("beat-b")
    (seen,) = second.ended(10)
    assert first.reclaim([(lease, after_lost_lease(0, 5)) for lease in first.ended(10)]) == {run.run_id}
    assert second.reclaim([(seen, after_lost_lease(0, 5))]) == set()
    assert world.runs(name)[0]["lostleases"] == 1


@pytest.mark.parametrize("ending", [released("not published in time"), Ending("dispatched"), Ending("skipped")])
def test_a_beat_that_slept_cannot_end_a_run_that_began_meanwhile(world: World, ending: Ending) -> None:
    """It saw a slot nobody had started.

    By the time it writes, the run has begun and its worker has died.
    """
    name = world.add()
    claim = world.claim_one()
    world.later(DISPATCH)
    seen = ended_one(world)
    world.start(claim)
    world.later(LEASE)
    assert world.beat.reclaim([(seen, ending)]) == set()
    assert world.states(name) == ["running"]
    world.sweep()
    assert world.states(name) == ["retry"]


def test_leases_of_another_namespace_are_not_seen(world: World) -> None:
    world.add()
    world.running()
    world.later(LEASE)
    assert world.sibling().for_beat("stranger").ended(10) == []
    assert len(world.beat.ended(10)) == 1


def test_no_more_leases_are_read_than_asked_for(world: World) -> None:
    for columns in ({}, {}, {"Policies": OVERLAP}, {"Policies": OVERLAP}):
        world.add(**columns)
    claims = world.claim().claims
    world.worker.start([world.request(claim) for claim in claims])
    world.beat.mark_dispatched([claim for claim in claims if not claim.exclusive])
    world.later(LEASE)
    assert [len(world.beat.ended(count)) for count in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 4]


def test_an_overlapping_run_that_was_lost_comes_again_through_the_outbox(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    run = world.start(claim)
    assert run is not None
    world.later(LEASE / 2)
    world.worker.extend([(run, LEASE)])
    world.later(LEASE / 2)
    assert world.beat.ended(10) == []
    world.finish(world.running())
    world.later(LEASE / 2)
    world.sweep()
    (row, *_) = world.runs(name)
    assert (row["state"], as_instant(row["dueat"])) == ("retry", world.now)
    assert not world.finish(run)
    claims = {claim.slot.scheduled_for: claim for claim in world.claim().claims}
    world.beat.mark_dispatched(claims.values())
    claims |= {claim.slot.scheduled_for: claim for claim in world.claim().claims}
    again = claims[NOON]
    assert (again.slot.attempt, again.slot.lost_leases) == (2, 1)
    assert world.claim().claims == []
    second = world.start(again)
    assert second is not None and second.attempt == 2


def test_an_extra_slot_takes_its_turn_though_the_schedule_is_always_due(world: World) -> None:
    """A job that runs longer than its interval is due again whenever it is free."""
    name = world.add(Schedule="every 60s")
    run = world.running()
    world.add_slot(run.job_id)
    world.later(90)
    world.finish(run)
    extra = world.running()
    assert extra.kind == "manual"
    world.later(90)
    world.finish(extra)
    assert world.running().scheduled_for == NOON + MINUTE * 3
    assert [row["state"] for row in world.runs(name) if row["kind"] == "manual"] == ["success"]


# When to wake


def wake(world: World) -> datetime | None:
    return earliest(world.beat.next_deadlines())


def test_with_nothing_to_do_there_is_no_instant_to_wake_at(world: World) -> None:
    found = world.beat.next_deadlines()
    assert (earliest(found), found.now) == (None, world.now)


def test_beat_wakes_for_the_next_due_job(world: World) -> None:
    world.add(NextRunTime=NOON + 5 * SECOND)
    world.add(NextRunTime=NOON + 3 * SECOND)
    world.add(NextRunTime=NOON + 1 * SECOND, Enabled=0)
    world.add(NextRunTime=NOON + 1 * SECOND, Quarantine="no such zone")
    world.add(NextRunTime=NOON + 1 * SECOND, CodeKey="elsewhere")
    world.add(NextRunTime=NOON + 1 * SECOND, Namespace=world.namespace + "-other")
    assert wake(world) == world.beat.next_deadlines().due_at == NOON + 3 * SECOND
    assert earliest(world.beat.next_deadlines(Claimable(code_keys=["elsewhere"]))) == NOON + 1 * SECOND


def test_a_beat_can_look_beyond_what_it_cannot_have(world: World) -> None:
    world.add(NextRunTime=NOON)
    world.add(NextRunTime=NOON + 5 * SECOND)
    world.add(NextRunTime=NOON + 3 * SECOND, CodeKey="elsewhere")
    world.add(NextRunTime=NOON + 2 * SECOND, Enabled=0)
    assert world.beat.starts_after(NOON) == NOON + 5 * SECOND
    assert world.beat.starts_after(NOON, Claimable(code_keys=["elsewhere"])) == NOON + 3 * SECOND
    assert world.beat.starts_after(NOON + 5 * SECOND) is None


def test_beat_wakes_for_a_retry(world: World) -> None:
    world.add()
    run = world.running()
    world.finish(run, Ending("retry", "failed", 7.0, 1))
    assert wake(world) == NOON + 7 * SECOND


def test_beat_wakes_for_a_claim_that_may_not_get_published(world: World) -> None:
    world.add(Schedule="once 2027-03-01T12:00:00Z")
    world.claim_one()
    found = world.beat.next_deadlines()
    assert earliest(found) == found.lease_ends_at == NOON + timedelta(seconds=DISPATCH)
    assert found.planned_at is None


def test_beat_wakes_for_a_queued_slot_and_for_a_lease(world: World) -> None:
    world.add(Schedule="once 2027-03-01T12:00:00Z")
    claim = world.claim_one()
    world.beat.mark_published([(claim, 40)])
    assert wake(world) == NOON + 40 * SECOND
    world.later(10)
    world.start(claim)
    assert wake(world) == NOON + timedelta(seconds=10 + LEASE)


def test_beat_wakes_for_the_planned_slot_of_a_running_job(world: World) -> None:
    world.add()
    world.running()
    found = world.beat.next_deadlines()
    assert earliest(found) == found.planned_at == NOON + MINUTE
    world.later(61)
    assert wake(world) == NOON + timedelta(seconds=LEASE)


def test_beat_wakes_for_the_lease_of_an_overlapping_run(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    world.start(claim)
    world.change(name, Enabled=0)
    found = world.beat.next_deadlines()
    assert earliest(found) == found.held_ends_at == NOON + timedelta(seconds=LEASE)


def test_beat_wakes_for_the_outbox_where_the_job_is_free(world: World) -> None:
    name = world.add(NextRunTime=NOON + 10 * MINUTE)
    assert world.add_slot(world.job(name)["id"])
    found = world.beat.next_deadlines()
    assert earliest(found) == found.outbox_at == NOON
    world.change(name, Enabled=0)
    assert wake(world) is None
    world.change(name, Enabled=1, LockedBy="maintenance")
    assert world.beat.next_deadlines().outbox_at is None


def test_beat_wakes_for_the_earliest_of_all(world: World) -> None:
    once = "once 2027-03-01T12:00:00Z"
    for _ in range(2):
        world.add(Schedule=once, Policies=OVERLAP)
    claims = world.claim().claims
    world.beat.mark_dispatched(claims)
    world.worker.start([world.request(claim) for claim in claims])  # two leases of runs, at 120 s
    world.add(Schedule="every 100s")
    world.running()  # planned at 100 s
    world.add(Schedule=once)
    world.beat.mark_published([(world.claim_one(), 80)])  # queued until 80 s
    world.add()
    world.finish(world.running(), Ending("retry", "failed", 50.0, 1))  # a retry at 50 s
    world.add(NextRunTime=NOON + 30 * SECOND)
    extra = world.add(NextRunTime=NOON + MINUTE * 60)
    found = world.beat.next_deadlines()
    assert found.held_ends_at == NOON + 120 * SECOND
    assert found.planned_at == NOON + 100 * SECOND
    assert found.lease_ends_at == NOON + 80 * SECOND
    assert found.due_at == earliest(found) == NOON + 30 * SECOND
    world.add_slot(world.job(extra)["id"])
    assert wake(world) == NOON


def test_a_wake_tells_of_changes(world: World) -> None:
    before = world.beat.next_deadlines().changes
    world.write(PauseJob(world.add(), "holidays"))
    assert world.beat.next_deadlines().changes == before + 1 == world.beat.changes()


def test_a_check_in_is_kept_with_its_run_by_who_holds_the_claim(world: World) -> None:
    world.add()
    claim = world.claim_one()
    stale = claim._replace(claim_id="00000000-0000-4000-8000-00000000abcd")
    assert world.beat.note_check_ins([(stale, "{}")]).done == set()
    assert world.beat.check_ins([claim.run_id]) == {}
    assert world.beat.note_check_ins([(claim, '{"id": "one"}')]).done == {claim.run_id}
    assert world.beat.check_ins([claim.run_id, stale.claim_id]) == {claim.run_id: '{"id": "one"}'}


# Tasks that nobody knows


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_slot_whose_task_nobody_knows_says_how_old_it_is(world: World, columns: Mapping[str, Any]) -> None:
    name = world.add(**columns)
    claim = world.claim_one()
    assert claim.slot.unknown_seconds is None
    world.later(1)
    world.beat.release_claims([claim], UNKNOWN_TASK, 10)
    world.later(10)
    again = world.claim_one()
    assert again.run_id == claim.run_id and again.slot.unknown_seconds == pytest.approx(11)
    world.beat.release_claims([again], "the broker is away", 0)
    assert world.claim_one().slot.unknown_seconds is None
    assert [run["failures"] for run in world.runs(name)] == [0]


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_slot_that_waited_in_vain_is_skipped_and_its_job_goes_on(world: World, columns: Mapping[str, Any]) -> None:
    name = world.add(**columns)
    claim = world.claim_one()
    assert world.beat.skip([claim], UNKNOWN_TASK).done == {claim.run_id}
    (row,) = world.runs(name)
    assert (row["state"], row["reason"], row["failures"]) == ("skipped", UNKNOWN_TASK, 0)
    job = world.job(name)
    assert (job["lockedby"], job["retryat"], world.instant(name, "nextruntime")) == (None, None, NOON + MINUTE)


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_worker_that_does_not_know_the_task_gives_its_slot_back(world: World, columns: Mapping[str, Any]) -> None:
    """Also one that was fired and forgotten: it comes again from the outbox, under the same run."""
    name = world.add(**columns)
    claim = world.claim_one()
    if columns:
        world.beat.mark_dispatched([claim])
    else:
        world.publish(claim)
    run = world.start(claim)
    assert run is not None and world.finish(run, released_unknown(2.0))
    assert world.states(name) == ["scheduled"] and world.claim().claims == []
    world.later(2)
    again = world.claim_one()
    assert (again.run_id, again.slot.attempt, again.slot.failures) == (claim.run_id, 1, 0)
    assert again.slot.unknown_seconds == pytest.approx(2)
    assert world.beat.skip([again], UNKNOWN_TASK).done == {again.run_id}
    assert world.states(name) == ["skipped"]

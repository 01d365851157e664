"""Starting: one attempt begins at most once, and never while another run holds the job."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import Claim, DeleteJob
from celery_sqlbeat.model.lifecycle import Ending, after_lost_lease, left_to_others, released
from tests.support.world import LEASE, NOON, OVERLAP, World, as_instant


def test_a_start_takes_the_lease_over_for_the_worker(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.later(7)
    run = world.start(claim)
    assert run is not None
    assert (run.run_id, run.claim_id, run.fence) == (claim.run_id, claim.claim_id, claim.fence)
    job = world.job(name)
    assert (job["lockedby"], job["startedretry"]) == ("worker-1", 0)
    assert world.instant(name, "leaseendsat") == world.now + timedelta(seconds=LEASE)
    assert world.instant(name, "lockedat") == world.now
    assert world.instant(name, "claimedat") == NOON
    assert world.states(name) == ["running"]


def test_a_started_run_knows_what_its_outcome_depends_on(world: World) -> None:
    world.add(LockTimeoutMinutes=3, Policies='{"max_retries": 7}')
    run = world.running()
    assert (run.lease_seconds, run.max_retries, run.failures, run.lost_leases) == (180, 7, 0, 0)
    assert (run.attempt, run.kind, run.scheduled_for, bool(run.exclusive)) == (1, "schedule", NOON, True)


def test_a_message_delivered_twice_starts_once(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.publish(claim)
    assert world.start(claim) is not None
    assert world.start(claim) is None


def test_a_message_redelivered_to_another_worker_starts_once(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.publish(claim)
    assert world.start(claim) is not None
    assert world.store.for_worker("worker-2").start([world.request(claim)]) == {}
    assert world.job(name)["lockedby"] == "worker-1"


def test_a_message_may_start_before_its_claim_is_marked_published(world: World) -> None:
    """The broker was faster than beat's next statement."""
    world.add()
    claim = world.claim_one()
    assert world.start(claim) is not None


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_what_began_before_its_claim_was_marked_was_published_by_then(world: World, columns: dict[str, Any]) -> None:
    name = world.add(**columns)
    claim = world.claim_one()
    world.later(1)
    run = world.start(claim)
    assert run is not None
    began_at = world.now
    world.later(1)
    world.publish(claim)
    world.later(1)
    assert world.finish(run)
    (row,) = world.runs(name)
    assert row["state"] == "success"
    assert as_instant(row["publishedat"]) == as_instant(row["startedat"]) == began_at


def test_a_message_may_start_after_its_deadline_as_long_as_nobody_took_the_slot(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.later(LEASE + 30)
    assert world.start(claim) is not None


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_the_same_question_asked_again_is_answered_the_same(world: World, columns: dict[str, Any]) -> None:
    """The answer may be lost on the way; a start whose answer is lost must not be a lost start."""
    world.add(**columns)
    claim = world.claim_one()
    request = world.request(claim)
    first = world.worker.start([request])
    assert first.keys() == {claim.run_id}
    assert world.worker.start([request]) == first


def test_the_same_question_is_refused_once_the_lease_is_gone(world: World) -> None:
    world.add()
    claim = world.claim_one()
    request = world.request(claim)
    run = world.worker.start([request])[claim.run_id]
    world.finish(run)
    assert world.worker.start([request]) == {}


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_retry_by_celery_itself_may_start_the_same_attempt_again(world: World, columns: dict[str, Any]) -> None:
    name = world.add(**columns)
    claim = world.claim_one()
    world.publish(claim)
    assert world.start(claim) is not None
    again = world.start(claim, celery_retries=1)
    assert again is not None and again.attempt == 1 and again.run_id == claim.run_id
    assert world.start(claim, celery_retries=1) is None
    assert world.start(claim, celery_retries=0) is None
    assert world.start(claim, celery_retries=2) is not None
    assert world.states(name) == ["running"]


def test_a_message_is_stale_after_its_claim_was_given_back(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.beat.release_claims([claim], "the broker refused it")
    assert world.start(claim) is None


def test_a_message_of_an_earlier_claim_cannot_start_the_run_claimed_again(world: World) -> None:
    world.add()
    stale = world.claim_one()
    world.beat.release_claims([stale], "no answer from the broker")
    claim = world.claim_one()
    assert claim.run_id == stale.run_id
    assert world.start(stale) is None
    assert world.start(claim) is not None


def test_a_message_is_stale_after_its_slot_was_taken_over(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.later(16)
    world.sweep()
    assert world.start(claim) is None


def test_a_message_is_stale_after_its_run_was_lost(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.start(claim)
    world.later(LEASE)
    world.sweep()
    assert world.start(claim) is None
    assert world.start(claim, celery_retries=1) is None


@pytest.mark.parametrize("ending", [Ending("success"), Ending("retry", "failed", 5.0, 1), Ending("cancelled")])
def test_an_ended_attempt_may_not_start(world: World, ending: Ending) -> None:
    world.add()
    claim = world.claim_one()
    world.publish(claim)
    run = world.start(claim)
    assert run is not None and world.finish(run, ending)
    assert world.start(claim) is None
    assert world.start(claim, celery_retries=3) is None


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_start_needs_run_claim_and_fence_each(world: World, columns: dict[str, Any]) -> None:
    world.add(**columns)
    claim = world.claim_one()
    right = world.request(claim)
    assert world.worker.start([right._replace(claim_id=world.ids.random_id())]) == {}
    assert world.worker.start([right._replace(run_id=world.ids.random_id())]) == {}
    assert world.worker.start([right._replace(fence=claim.fence + 1)]) == {}
    assert world.worker.start([right._replace(fence=claim.fence - 1)]) == {}
    assert world.worker.start([right]) != {}


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
def test_a_worker_of_another_namespace_starts_nothing(world: World, columns: dict[str, Any]) -> None:
    name = world.add(**columns)
    claim = world.claim_one()
    stranger = world.sibling().for_worker("stranger")
    assert stranger.start([world.request(claim)]) == {}
    assert world.states(name) == ["claimed"]
    assert world.start(claim) is not None


def test_a_batch_starts_what_may_begin_and_only_that(world: World) -> None:
    for _ in range(5):
        world.add()
    claims = world.claim().claims
    world.publish(*claims)
    world.start(claims[0])
    world.finish(world.worker.start([world.request(claims[1])])[claims[1].run_id])
    requests = [world.request(claim) for claim in claims]
    requests[2] = requests[2]._replace(claim_id=world.ids.random_id())
    assert world.worker.start(requests).keys() == {claims[3].run_id, claims[4].run_id}


def test_no_questions_are_no_answers(world: World) -> None:
    assert world.worker.start([]) == {}


def test_what_was_fired_and_forgotten_starts_late_and_leaves_its_job_alone(world: World) -> None:
    """A worker got the extension after the slot was fired and forgotten.

    It runs as stock beat would have it.
    """
    name = world.add()
    claim = world.forgotten()
    before = world.job(name)
    run = world.start(claim)
    assert run is not None and (run.fence, bool(run.exclusive)) == (claim.fence, False)
    assert world.job(name) == before
    world.later(60)
    assert world.worker.extend([(run, LEASE)]).lost == set()
    assert world.claim_one().run_id != claim.run_id
    assert world.finish(run)
    assert world.states(name) == ["success", "claimed"]
    assert before["nextruntime"] == world.job(name)["nextruntime"]


def test_a_whole_backlog_of_forgotten_slots_starts_in_one_batch_beside_a_run_that_holds_the_job(world: World) -> None:
    name = world.add()
    claims = []
    for _ in range(5):
        claims.append(world.forgotten())
        world.later(60)
    holder = world.running()
    started = world.worker.start([world.request(claim) for claim in claims])
    assert started.keys() == {claim.run_id for claim in claims}
    assert world.states(name) == ["running"] * 6
    assert world.job(name)["lockedby"] == "worker-1" and world.finish(holder)
    for run in started.values():
        assert world.finish(run)
    assert world.states(name) == ["success"] * 6


def test_what_was_left_to_other_workers_starts_late_as_what_was_forgotten(world: World) -> None:
    name = world.add(Schedule="every 120s")
    claim = world.claim_one()
    world.publish(claim)
    world.later(LEASE)
    (lease,) = world.beat.ended(10)
    assert world.beat.reclaim([(lease, left_to_others())]) == {claim.run_id}
    world.running()
    assert world.start(claim) is not None
    assert world.states(name) == ["running", "running"]


def test_a_forgotten_run_starts_late_only_once(world: World) -> None:
    world.add()
    claim = world.forgotten()
    request = world.request(claim)
    first = world.worker.start([request])
    run = first[claim.run_id]
    assert world.start(claim) is None
    assert world.worker.start([request]) == first
    assert world.refused(claim) == "a duplicate: its run has started already, and is running"
    world.finish(run)
    assert world.start(claim) is None
    assert world.refused(claim) == "a duplicate: its run has started already, and is success"


def test_a_forgotten_run_that_fails_is_tried_again_as_any_other(world: World) -> None:
    name = world.add()
    run = world.start(world.forgotten())
    assert run is not None and world.finish(run, Ending("retry", "failed", 5.0, 1))
    world.later(5)
    again = world.claim_one()
    assert (again.slot.attempt, again.slot.failures, again.slot.advances) == (2, 1, False)
    world.publish(again)
    second = world.start(again)
    assert second is not None and second.exclusive and world.finish(second)
    assert world.states(name) == ["retry", "success"]


def test_a_forgotten_run_whose_worker_is_lost_is_tried_again(world: World) -> None:
    name = world.add()
    assert world.start(world.forgotten()) is not None
    world.later(LEASE)
    world.sweep()
    assert world.claim_one().slot.lost_leases == 1
    assert world.states(name)[:2] == ["retry", "claimed"]


def test_a_late_start_needs_run_claim_and_fence_each(world: World) -> None:
    name = world.add()
    claim = world.forgotten()
    right, before = world.request(claim), world.job(name)
    assert world.worker.start([right._replace(claim_id=world.ids.random_id())]) == {}
    assert world.worker.start([right._replace(fence=claim.fence + 1)]) == {}
    assert world.worker.start([right._replace(fence=claim.fence - 1)]) == {}
    assert (world.job(name), world.states(name)) == (before, ["dispatched"])
    assert world.worker.start([right]) != {}


@pytest.mark.parametrize("dispatch", [World.forgotten, World.never_started])
def test_a_late_start_may_be_retried_by_celery(world: World, dispatch: Callable[[World], Claim]) -> None:
    """The retry's message carries the headers of the first, so the fence before the late start."""
    world.add()
    claim = dispatch(world)
    run = world.start(claim)
    again = world.start(claim, celery_retries=1)
    assert run is not None and again is not None and again.fence == run.fence
    assert world.start(claim, celery_retries=1) is None


def test_a_late_start_leaves_the_schedule_alone(world: World) -> None:
    name = world.add()
    claim = world.forgotten()
    following = world.instant(name, "nextruntime")
    world.later(3)
    run = world.start(claim)
    assert run is not None and world.finish(run)
    assert world.instant(name, "nextruntime") == following == NOON + timedelta(seconds=60)


def test_a_leased_slot_that_starts_after_its_last_deadline_takes_the_lease_of_a_free_job(world: World) -> None:
    name = world.add(Schedule="every 7d")
    claim = world.never_started()
    assert (world.states(name), world.runs(name)[0]["reason"]) == (["dispatched"], "never started")
    run = world.start(claim)
    assert run is not None and run.exclusive and run.fence > claim.fence
    assert world.job(name)["lockedby"] == "worker-1"
    assert world.start(claim) is None
    assert world.refused(claim) == "a duplicate: its run has started already, and is running"
    assert world.worker.extend([(run, LEASE)]).lost == set()
    assert world.finish(run)
    assert world.states(name) == ["success"]


def test_a_leased_slot_that_comes_after_its_last_deadline_is_skipped_while_another_run_holds_the_job(
    world: World,
) -> None:
    """Its policy forbids to overlap, and its message had its time.

    The row says what became of the slot.
    """
    name = world.add()
    early = world.never_started()
    run = world.running()
    assert world.start(early) is None
    assert world.refused(early) == "another run holds its job: the slot ends as skipped (overlap)"
    skipped = world.runs(name)[0]
    assert (skipped["state"], skipped["reason"], skipped["priorstate"]) == ("skipped", "overlap", "dispatched")
    assert world.finish(run)
    assert world.start(early) is None
    assert world.refused(early) == "another run holds its job: the slot ends as skipped (overlap)"


def test_a_late_start_keeps_out_of_a_job_that_was_unlocked_by_hand(world: World) -> None:
    """The run left behind there is still to be taken up, so the row must not forget it."""
    name = world.add(NextRunTime=NOON)
    early = world.never_started()
    run = world.running()
    world.change(name, LockedBy=None)
    assert world.start(early) is None
    assert world.claim_one().slot.continues == run.run_id


def test_a_refusal_that_has_passed_ends_nothing(world: World) -> None:
    """The job was held when the start was refused, and is free when it is asked why."""
    name = world.add(Schedule="every 7d")
    claim = world.never_started()
    assert world.refused(claim) is None
    assert world.states(name) == ["dispatched"]
    assert world.start(claim) is not None


def test_stale_messages_are_told_apart(world: World) -> None:
    world.add()
    stale = world.claim_one()
    world.beat.release_claims([stale], "no answer from the broker")
    assert world.refused(stale) == "stale: its run is scheduled (no answer from the broker)"
    claim = world.claim_one()
    assert world.refused(stale) == "stale: its claim is no longer valid"
    assert world.refused(claim._replace(fence=claim.fence + 1)) == "stale: its claim is no longer valid"
    unknown = claim._replace(run_id=world.ids.random_id())
    assert world.refused(unknown) == "stale: its run is not known here, or its history is gone"
    assert world.start(claim) is not None


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("is_dispatched", [False, True])
def test_a_run_of_a_deleted_job_that_has_not_begun_never_begins(
    world: World, columns: dict[str, Any], force: bool, is_dispatched: bool
) -> None:
    name = world.add(**columns)
    claim = world.claim_one()
    if is_dispatched:
        world.beat.mark_dispatched([claim])
    elif not columns and not force:
        return  # it holds its job, which is deleted once this run has ended
    assert world.write(DeleteJob(name, force=force))
    assert world.start(claim) is None
    why = world.refused(claim)
    (row,) = world.runs(name)
    assert row["state"] == "cancelled"
    if is_dispatched:
        assert (row["reason"], why) == ("job deleted", "its job was deleted: the slot ends as cancelled")
    assert world.start(claim) is None


def test_a_begun_run_of_a_job_that_is_to_be_deleted_may_be_retried_by_celery(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.forgotten()
    run = world.start(claim)
    assert run is not None and world.write(DeleteJob(name))
    assert world.start(claim, celery_retries=1) is not None
    assert world.states(name) == ["running"]


def test_overlapping_runs_start_without_touching_their_job(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claims = []
    for _ in range(3):
        claims.append(world.claim_one())
        world.beat.mark_dispatched(claims[-1:])
        world.later(60)
    before = world.job(name)
    runs = [world.start(claim) for claim in claims]
    assert all(runs)
    assert world.job(name) == before
    assert world.states(name) == ["running"] * 3


def test_an_overlapping_run_starts_once(world: World) -> None:
    world.add(Policies=OVERLAP)
    claim = world.claim_one()
    assert world.start(claim) is not None
    assert world.start(claim) is None
    world.beat.mark_dispatched([claim])
    assert world.start(claim) is None


def test_an_overlapping_run_that_ended_may_not_start(world: World) -> None:
    world.add(Policies=OVERLAP)
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    run = world.start(claim)
    assert run is not None and world.finish(run, after_lost_lease(0, 5))
    assert world.start(claim) is None
    assert world.start(claim, celery_retries=1) is None


def test_an_overlapping_run_that_was_un_started_runs_again_under_the_same_attempt(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    run = world.start(claim)
    assert run is not None and world.finish(run, released("shutdown"))
    again = world.claim_one()
    assert (again.run_id, again.slot.attempt) == (run.run_id, 1)
    assert again.fence > run.fence
    assert world.start(claim) is None
    assert world.start(again) is not None
    assert world.states(name) == ["running"]


def test_of_two_requests_for_one_run_in_one_batch_one_may_begin(world: World) -> None:
    """A broker may deliver a message twice to one worker; its batch must not start both."""
    world.add()
    claim = world.claim_one()
    first, second = world.request(claim), world.request(claim)
    started = world.worker.start([first, second])
    assert started[claim.run_id].start_id in (first.start_id, second.start_id)
    again = world.worker.start([first])
    assert bool(again) == (started[claim.run_id].start_id == first.start_id)

"""Outcomes: who may write them, what becomes of the slot, and when the job goes on."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import NewRun, StartedRun
from celery_sqlbeat.model.lifecycle import Backoff, Ending, after_failure, after_lost_lease, after_success, released
from celery_sqlbeat.store.protocols import RunQuery
from tests.contract.conftest import Place
from tests.support.world import LEASE, NOON, OVERLAP, World, as_instant

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
BACKOFF = Backoff(base=8.0, factor=2.0, longest=600.0)


def failed(run: StartedRun, error: str | None = None, random: float = 1.0) -> Ending:
    """Return what a worker decides about a run that raised; `random` is the jitter's draw."""
    return after_failure(run.failures, run.max_retries, BACKOFF, lambda: random, error)


def lost(run: StartedRun, limit: int = 5, counted: bool = True) -> Ending:
    """Return what is decided about a run whose lease was lost."""
    return after_lost_lease(run.lost_leases, limit, counted=counted)


def retried(world: World, run: StartedRun, ending: Ending) -> StartedRun:
    """End a run that is to be tried again, and start the attempt that follows."""
    assert world.finish(run, ending)
    world.later(ending.retry_seconds or 0)
    return world.running()


# Who may write


def test_an_outcome_is_written_once(world: World) -> None:
    name = world.add()
    run = world.running()
    assert world.finish(run)
    before = world.job(name), world.runs(name)
    world.later(5)
    assert not world.finish(run, failed(run))
    assert not world.finish(run)
    assert (world.job(name), world.runs(name)) == before


@pytest.mark.parametrize("columns", [{}, {"Policies": OVERLAP}])
@pytest.mark.parametrize("field", ["run_id", "claim_id", "fence"])
def test_an_outcome_needs_run_claim_and_fence_each(world: World, field: str, columns: Mapping[str, Any]) -> None:
    name = world.add(**columns)
    run = world.running()
    before = world.job(name), world.runs(name)
    for other in (run.fence - 1, run.fence + 1) if field == "fence" else (world.ids.random_id(), world.ids.random_id()):
        wrong: dict[str, Any] = {field: other}
        assert not world.finish(run._replace(**wrong))
    assert (world.job(name), world.runs(name)) == before
    assert world.finish(run)


def test_an_outcome_under_the_fence_of_the_successor_changes_nothing(world: World) -> None:
    name = world.add()
    zombie = world.running()
    world.later(LEASE)
    world.sweep()
    successor = world.running()
    before = world.job(name), world.runs(name)
    assert not world.finish(zombie)
    assert not world.finish(zombie._replace(fence=successor.fence))
    assert not world.finish(zombie._replace(run_id=successor.run_id, fence=successor.fence))
    assert not world.finish(zombie._replace(claim_id=successor.claim_id, fence=successor.fence))
    assert not world.finish(zombie._replace(run_id=successor.run_id, claim_id=successor.claim_id))
    assert (world.job(name), world.runs(name)) == before
    assert world.finish(successor)


def test_a_lease_past_its_end_may_still_be_ended_until_somebody_takes_it(world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(LEASE + 60)
    assert world.finish(run)
    assert world.states(name) == ["success"]


def test_a_batch_of_outcomes_writes_those_that_are_not_lost(world: World) -> None:
    names = [world.add() for _ in range(4)]
    runs = world.worker.start([world.request(claim) for claim in world.claim().claims])
    by_name = {run.job_name: run for run in runs.values()}
    world.finish(by_name[names[0]])
    world.change(names[1], LockedBy=None)
    outcomes = [(by_name[name], after_success()) for name in names[:3]] + [
        (by_name[names[3]], failed(by_name[names[3]]))
    ]
    assert world.worker.finish(outcomes) == {by_name[names[0]].run_id, by_name[names[1]].run_id}
    assert [world.states(name)[0] for name in names] == ["success", "running", "success", "retry"]


def test_no_outcomes_are_none_lost(world: World) -> None:
    assert world.worker.finish([]) == set()


# Success


def test_success_frees_the_job_and_forgets_the_claim(world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(5)
    world.finish(run)
    job = world.job(name)
    for column in ("lockedby", "lockedat", "leaseendsat", "claimedat", "publishedat", "runid", "claimid"):
        assert job[column] is None, column
    assert (job["startedretry"], job["retryat"], job["retryrunid"]) == (None, None, None)
    assert world.instant(name, "lastruntime") == world.now
    assert job["fence"] > run.fence


def test_success_is_recorded_with_its_instants(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    world.later(1)
    world.publish(claim)
    world.later(1)
    run = world.start(claim)
    world.later(1)
    assert run is not None and world.finish(run, after_success("replaced"))
    (row,) = world.runs(name)
    assert (row["state"], row["priorstate"], row["reason"]) == ("success", "running", "replaced")
    instants = [as_instant(row[column]) for column in ("claimedat", "publishedat", "startedat", "finishedat")]
    assert instants == [NOON + n * SECOND for n in range(4)]
    assert (row["claimedby"], row["startedby"]) == ("beat-1", "worker-1")


def test_from_start_counts_from_the_claim_not_from_slot_or_end(world: World) -> None:
    name = world.add(NextRunTime=NOON - 7 * SECOND)
    run = world.running()
    world.later(25)
    world.finish(run)
    assert world.instant(name, "nextruntime") == NOON + MINUTE


def test_from_start_counts_from_the_claim_of_the_attempt_that_succeeded(world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(10)
    run = retried(world, run, failed(run))
    claimed = world.now
    world.later(3)
    world.finish(run)
    assert claimed == NOON + 18 * SECOND
    assert world.instant(name, "nextruntime") == claimed + MINUTE


def test_fixed_rate_does_not_drift(world: World) -> None:
    name = world.add(Policies='{"cadence": "fixed_rate"}')
    slots = []
    for late in (3.0, 11.5, 0.25, 44.0, 29.0):
        world.at((world.instant(name, "nextruntime") or NOON) + timedelta(seconds=late))
        run = world.running()
        slots.append(run.scheduled_for)
        world.later(late)
        world.finish(run)
    assert slots == [NOON + n * MINUTE for n in range(5)]
    assert world.states(name) == ["success"] * 5


def test_fixed_rate_keeps_its_grid_through_retries(world: World) -> None:
    name = world.add(Policies='{"cadence": "fixed_rate"}')
    run = world.running()
    run = retried(world, run, failed(run))
    world.finish(run)
    assert world.instant(name, "nextruntime") == NOON + MINUTE


def test_fixed_delay_counts_from_the_end_of_the_run(world: World) -> None:
    name = world.add(Policies='{"cadence": "fixed_delay"}')
    run = world.running()
    world.later(43)
    world.finish(run)
    assert world.instant(name, "nextruntime") == world.now + MINUTE


def test_fixed_delay_counts_from_the_end_of_the_last_attempt(world: World) -> None:
    name = world.add(Policies='{"cadence": "fixed_delay"}')
    run = world.running()
    world.later(10)
    run = retried(world, run, failed(run))
    world.later(5)
    world.finish(run)
    assert world.instant(name, "nextruntime") == world.now + MINUTE == NOON + 23 * SECOND + MINUTE


def test_a_cron_job_takes_the_next_point_of_its_grid(world: World) -> None:
    name = world.add(Schedule="cron */5 * * * *")
    world.later(70)
    run = world.running()
    world.later(30)
    world.finish(run)
    assert world.instant(name, "nextruntime") == NOON + 5 * MINUTE


def test_a_cron_job_whose_retries_passed_a_slot_records_it(world: World) -> None:
    name = world.add(Schedule="cron * * * * *")
    run = world.running()
    world.later(150)
    world.worker.extend([(run, LEASE)])
    run = retried(world, run, failed(run, random=0))
    world.finish(run)
    world.running()
    assert [(row["state"], row["slotcount"]) for row in world.runs(name)] == [
        ("retry", 1),
        ("success", 1),
        ("skipped", 1),
        ("running", 1),
    ]


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"Policies": '{"cadence": "fixed_rate"}'},
        {"Policies": '{"cadence": "fixed_delay"}'},
        {"Schedule": "cron * * * * *"},
    ],
)
@pytest.mark.parametrize("moment", ["before the claim", "while it runs", "before the retry"])
def test_the_next_slot_is_later_than_the_one_ended_though_the_clock_stepped_back(
    world: World, columns: Mapping[str, Any], moment: str
) -> None:
    name = world.add(**columns)
    if moment == "before the claim":
        # The clock that made the slot due was ahead; the claim fell just before it was set back.
        world.at(NOON)
    run = world.running()
    if moment == "before the retry":
        world.finish(run, failed(run, random=0))
        world.later(1)
        run = world.running()
    world.at(NOON - timedelta(hours=2))
    world.finish(run)
    following = world.instant(name, "nextruntime")
    assert following is not None and following > NOON


def test_a_retry_claimed_after_the_clock_stepped_back_still_leads_to_a_later_slot(world: World) -> None:
    name = world.add()
    run = world.running()
    world.at(NOON - timedelta(hours=2))
    run = retried(world, run, failed(run, random=0))
    world.finish(run)
    assert world.instant(name, "nextruntime") == NOON + MINUTE


# An operator's change


@pytest.mark.parametrize("changed", [NOON - timedelta(days=1), NOON + timedelta(days=1)])
@pytest.mark.parametrize("ending", [after_success(), Ending("dlq", "retries exhausted"), Ending("cancelled")])
def test_an_operators_next_run_wins_over_the_outcome(world: World, changed: datetime, ending: Ending) -> None:
    name = world.add()
    run = world.running()
    world.change(name, NextRunTime=changed)
    assert world.finish(run, ending)
    assert world.instant(name, "nextruntime") == changed


def test_an_operators_next_run_wins_also_while_the_slot_waits_for_its_retry(world: World) -> None:
    name = world.add()
    run = world.running()
    world.finish(run, failed(run))
    changed = NOON + timedelta(hours=5)
    world.change(name, NextRunTime=changed)
    world.later(8)
    run = world.running()
    assert run.attempt == 2
    world.finish(run)
    assert world.instant(name, "nextruntime") == changed


def test_an_operators_next_run_wins_also_while_the_slot_waits_to_be_claimed_again(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    changed = NOON + timedelta(hours=5)
    world.change(name, NextRunTime=changed)
    world.beat.release_claims([claim], "no broker")
    world.finish(world.running())
    assert world.instant(name, "nextruntime") == changed


def test_an_operators_change_does_not_finish_a_once_job(world: World) -> None:
    name = world.add(Schedule="once 2027-03-01T12:00:00Z")
    run = world.running()
    world.change(name, NextRunTime=NOON + MINUTE)
    world.finish(run)
    assert (world.job(name)["enabled"], world.instant(name, "nextruntime")) == (1, NOON + MINUTE)


def test_a_job_disabled_while_it_runs_ends_its_slot_and_stays_disabled(world: World) -> None:
    name = world.add()
    run = world.running()
    world.change(name, Enabled=0)
    assert world.finish(run)
    assert (world.job(name)["enabled"], world.instant(name, "nextruntime")) == (0, NOON + MINUTE)


def test_a_retry_written_by_hand_runs_once_and_leaves_the_schedule(world: World) -> None:
    name = world.add(NextRunTime=NOON + timedelta(hours=1), RetryAt=NOON - SECOND)
    run = world.running()
    assert (run.kind, run.scheduled_for, run.attempt) == ("schedule", NOON - SECOND, 1)
    world.finish(run)
    assert (world.job(name)["retryat"], world.instant(name, "nextruntime")) == (None, NOON + timedelta(hours=1))


def test_a_retry_written_by_hand_begins_the_schedule_of_a_job_without_a_next_run(world: World) -> None:
    name = world.add(NextRunTime=None, RetryAt=NOON - SECOND)
    run = world.running()
    assert run.scheduled_for == NOON - SECOND
    world.finish(run)
    assert (world.job(name)["enabled"], world.instant(name, "nextruntime")) == (1, NOON + MINUTE)


def replayed(world: World) -> list[int]:
    """Replay all dead letters at once; returns the numbers of the attempts that followed."""
    letters = world.letters()
    made = world.replay(*letters)
    return sorted(run.attempt for run in world.admin.runs(RunQuery(run_ids=made)))


def twice_dead(world: World, **columns: Any) -> str:
    """One slot with two dead letters, as an operator gets it who moves a job back."""
    name = world.add(Policies='{"max_retries": 0}', **columns)
    for _ in range(2):
        world.change(name, NextRunTime=NOON)
        world.finish(world.running(), Ending("dlq", "retries exhausted", None, 1))
    return name


def test_of_two_dead_letters_of_a_slot_only_the_newest_is_replayed(world: World) -> None:
    name = twice_dead(world)
    assert replayed(world) == [3]
    assert replayed(world) == [], "its attempt is open"
    world.finish(world.running(), Ending("dlq", "retries exhausted", None, 1))
    assert replayed(world) == [4]
    world.finish(world.running())
    assert [(row["attempt"], row["state"], row["reason"]) for row in world.runs(name)] == [
        (1, "dlq", "retries exhausted"),
        (2, "dlq", "replayed"),
        (3, "dlq", "replayed"),
        (4, "success", None),
    ]
    assert replayed(world) == [], "its slot has succeeded"


def test_a_dead_letter_is_not_replayed_while_an_earlier_attempt_of_its_slot_goes_on(world: World) -> None:
    """Overlapping runs of one slot, whose job was moved back while the first of them ran."""
    name = world.add(Policies='{"max_retries": 0, "overlap": "allow"}')
    first = world.start(world.forgotten())
    assert first is not None
    world.change(name, NextRunTime=NOON)
    second = world.start(world.forgotten())
    assert second is not None and world.finish(second, Ending("dlq", "retries exhausted", None, 1))
    assert replayed(world) == []
    assert world.finish(first, Ending("dlq", "retries exhausted", None, 1))
    assert replayed(world) == [3]


def test_two_administrators_replay_a_slot_once(world: World, place: Place) -> None:
    """Both have read the dead letters before either of them replays one."""
    twice_dead(world)
    letters = world.letters()
    other = place.store(world.namespace)
    try:
        made = world.replay(*letters)
        assert len(made) == 1
        again = zip(world.ids.run_ids(2), letters, strict=True)
        assert other.for_admin().enqueue([NewRun(run_id, letter.job_id, letter) for run_id, letter in again]) == set()
    finally:
        other.close()


def test_a_dead_letter_is_not_replayed_beside_a_slot_that_a_beat_has_claimed_again(world: World) -> None:
    name = twice_dead(world)
    world.change(name, NextRunTime=NOON)
    claim = world.claim_one()
    assert claim.slot.attempt == 3
    assert replayed(world) == []


# Failure


def test_a_failure_frees_the_job_and_leaves_its_next_run(world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(5)
    assert world.finish(run, failed(run, "ValueError: no"))
    job = world.job(name)
    assert (job["lockedby"], job["lastruntime"]) == (None, None)
    assert world.instant(name, "nextruntime") == NOON
    assert world.instant(name, "retryat") == world.now + 8 * SECOND
    (row,) = world.runs(name)
    assert (row["state"], row["priorstate"], row["error"]) == ("retry", "running", "ValueError: no")


def test_a_retry_is_a_new_attempt_under_a_new_run_id_and_a_higher_fence(world: World) -> None:
    world.add()
    first = world.running()
    second = retried(world, first, failed(first))
    assert second.run_id != first.run_id and second.claim_id != first.claim_id
    assert second.fence > first.fence
    assert (second.attempt, second.scheduled_for, second.failures) == (2, first.scheduled_for, 1)


def test_the_backoff_doubles_and_is_jittered_fully(world: World) -> None:
    name = world.add(Policies='{"max_retries": 4}')
    run = world.running()
    for random, expected in ((0.5, 4), (0.0, 0), (1.0, 32), (0.25, 16)):
        world.finish(run, failed(run, random=random))
        assert world.instant(name, "retryat") == world.now + expected * SECOND
        world.later(expected)
        run = world.running()


def test_a_slot_out_of_retries_is_a_dead_letter_and_the_job_goes_on(world: World) -> None:
    name = world.add(Policies='{"max_retries": 2}')
    run = world.running()
    for _ in range(2):
        run = retried(world, run, failed(run))
    claimed = world.now
    world.later(2)
    assert world.finish(run, failed(run, "ZeroDivisionError"))
    assert world.states(name) == ["retry", "retry", "dlq"]
    dead = world.runs(name)[-1]
    assert (dead["failures"], dead["error"], dead["priorstate"]) == (3, "ZeroDivisionError", "failed")
    job = world.job(name)
    assert (job["retryat"], job["retryrunid"], job["lastruntime"]) == (None, None, None)
    assert world.instant(name, "nextruntime") == claimed + MINUTE
    world.at(claimed + MINUTE)
    following = world.running()
    assert (following.attempt, following.failures, following.lost_leases) == (1, 0, 0)


def test_without_retries_the_first_failure_is_final(world: World) -> None:
    name = world.add(Policies='{"max_retries": 0}')
    run = world.running()
    world.finish(run, failed(run))
    assert world.states(name) == ["dlq"]


def test_a_waiting_retry_keeps_no_other_job_waiting(world: World) -> None:
    world.add()
    run = world.running()
    world.finish(run, failed(run))
    other = world.add()
    assert [claim.job_name for claim in world.claim().claims] == [other]


def test_a_retry_keeps_the_first_wish_of_the_broker_out_of_the_schedule(world: World) -> None:
    """A retry that is claimed late does not swallow slots: they are recorded."""
    name = world.add(Schedule="cron * * * * *")
    run = world.running()
    world.finish(run, failed(run))
    world.later(600)
    run = world.running()
    assert (run.attempt, run.scheduled_for) == (2, NOON)
    world.finish(run)
    assert world.claim_one().slot.scheduled_for == NOON + 10 * MINUTE
    gap = world.runs(name)[2]
    assert (gap["state"], gap["slotcount"]) == ("skipped", 9)


# Lost leases, shutdowns


def test_lost_leases_are_counted_apart_from_failures(world: World) -> None:
    world.add()
    run = world.running()
    run = retried(world, run, lost(run))
    assert (run.attempt, run.failures, run.lost_leases) == (2, 0, 1)
    run = retried(world, run, failed(run))
    assert (run.attempt, run.failures, run.lost_leases) == (3, 1, 1)


def test_a_slot_that_loses_lease_after_lease_is_a_dead_letter(world: World) -> None:
    name = world.add()
    run = world.running()
    for _ in range(2):
        run = retried(world, run, lost(run, limit=2))
    world.finish(run, lost(run, limit=2))
    assert world.states(name) == ["retry", "retry", "dlq"]
    assert world.runs(name)[-1]["error"] == "lease lost 3 times"
    assert world.job(name)["retryat"] is None


def test_uncounted_losses_are_no_reason_to_give_up(world: World) -> None:
    world.add()
    run = world.running()
    for attempt in range(2, 10):
        run = retried(world, run, lost(run, limit=2, counted=False))
        assert (run.attempt, run.failures, run.lost_leases) == (attempt, 0, 0)


def test_a_run_that_was_un_started_is_claimed_again_under_the_same_attempt(world: World) -> None:
    name = world.add()
    first = world.running()
    assert world.finish(first, released("shutdown"))
    assert world.states(name) == ["scheduled"]
    claim = world.claim_one()
    assert (claim.run_id, claim.slot.attempt) == (first.run_id, 1)
    assert claim.claim_id != first.claim_id and claim.fence > first.fence
    again = world.start(claim)
    assert again is not None and (again.failures, again.lost_leases) == (0, 0)
    world.finish(again)
    assert world.states(name) == ["success"]


# Extra slots and overlapping runs: the job's own schedule does not notice them


def extra_run(world: World, name: str) -> StartedRun:
    """Start an extra slot of a job whose schedule is not due."""
    assert world.add_slot(world.job(name)["id"])
    return world.running()


def test_an_extra_slot_leaves_the_schedule_alone(world: World) -> None:
    name = world.add(NextRunTime=NOON + timedelta(hours=1))
    run = extra_run(world, name)
    assert (run.kind, run.scheduled_for) == ("manual", NOON)
    world.later(5)
    assert world.finish(run)
    assert world.instant(name, "nextruntime") == NOON + timedelta(hours=1)
    assert world.instant(name, "lastruntime") == world.now


def test_a_failed_extra_slot_is_tried_again_once_per_failure(world: World) -> None:
    name = world.add(NextRunTime=NOON + timedelta(hours=1))
    run = extra_run(world, name)
    world.finish(run, failed(run))
    assert world.job(name)["retryat"] is None
    assert world.claim().claims == []
    world.later(8)
    second = world.running()
    assert (second.kind, second.scheduled_for, second.attempt, second.failures) == ("manual", NOON, 2, 1)
    world.finish(second)
    world.later(600)
    assert world.claim().claims == []
    assert world.states(name) == ["retry", "success"]


def test_an_extra_slot_does_not_disturb_a_slot_that_waits_for_its_retry(world: World) -> None:
    name = world.add()
    run = world.running()
    world.finish(run, failed(run))
    retry_at = world.job(name)["retryat"]
    extra = extra_run(world, name)
    assert world.finish(extra)
    assert world.job(name)["retryat"] == retry_at
    world.later(8)
    assert world.running().attempt == 2
    assert sorted(world.states(name)) == ["retry", "running", "success"]


def test_an_extra_slot_unlocked_by_hand_goes_back_to_the_outbox(world: World) -> None:
    for start in (False, True):
        name = world.add(NextRunTime=world.now + timedelta(hours=1))
        world.add_slot(world.job(name)["id"])
        claim = world.claim_one()
        if start:
            world.start(claim)
        world.change(name, LockedBy=None, NextRunTime=world.now)
        world.finish(world.running())
        world.finish(world.running())
        ends = {row["kind"]: row["state"] for row in world.runs(name) if row["state"] != "retry"}
        assert ends == {"manual": "success", "schedule": "success"}


def test_a_run_left_behind_by_a_hand_is_not_forgotten_over_an_extra_slot(world: World) -> None:
    name = world.add()
    run = world.running()
    world.change(name, LockedBy=None, NextRunTime=NOON + MINUTE)
    world.add_slot(run.job_id)
    following = world.running()
    assert (following.kind, following.scheduled_for, following.attempt) == ("schedule", NOON, 2)
    world.finish(following)
    extra = world.running()
    assert extra.kind == "manual"


def test_a_retry_is_not_forgotten_over_an_extra_slot_left_behind_by_a_hand(world: World) -> None:
    name = world.add()
    run = world.running()
    world.finish(run, failed(run))
    extra_run(world, name)
    world.change(name, LockedBy=None)
    world.later(8)
    second = world.running()
    assert (second.kind, second.scheduled_for, second.attempt) == ("schedule", NOON, 2)
    world.finish(second)
    again = world.running()
    assert (again.kind, again.attempt) == ("manual", 2)


def test_an_overlapping_run_that_fails_is_tried_again_under_the_same_slot(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    run = world.start(claim)
    assert run is not None and world.finish(run, failed(run))
    assert world.instant(name, "nextruntime") == NOON + MINUTE
    world.later(8)
    again = world.claim_one()
    assert (again.slot.scheduled_for, again.slot.attempt, again.slot.failures) == (NOON, 2, 1)
    world.beat.mark_dispatched([again])
    second = world.start(again)
    assert second is not None and world.finish(second)
    world.later(30)
    assert world.claim().claims == []
    assert world.states(name) == ["retry", "success"]


def test_an_overlapping_run_may_end_before_it_is_marked_dispatched(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    run = world.start(claim)
    assert run is not None and world.finish(run)
    assert world.states(name) == ["success"]
    assert (world.job(name)["lockedby"], world.instant(name, "nextruntime")) == (None, NOON + MINUTE)
    assert world.beat.mark_dispatched([claim]).done == set()


@pytest.mark.parametrize("early", [failed, lost])
def test_an_overlapping_run_may_fail_before_it_is_marked_dispatched(world: World, early: Any) -> None:
    """Its schedule goes on, and the retry is entered once."""
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    run = world.start(claim)
    assert run is not None and world.finish(run, early(run))
    assert world.beat.mark_dispatched([claim]).done == set()
    job = world.job(name)
    assert (job["lockedby"], job["retryat"], world.instant(name, "nextruntime")) == (None, None, NOON + MINUTE)
    world.later(8)
    again = world.claim_one()
    assert again.slot.attempt == 2
    world.beat.mark_dispatched([again])
    assert world.claim().claims == []
    assert world.states(name) == ["retry", "dispatched"]


def test_an_overlapping_run_unlocked_by_hand_is_lost_to_its_holder(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    run = world.running()
    world.change(name, LockedBy=None)
    assert world.claim_one().slot.attempt == 2
    assert world.worker.extend([(run, LEASE)]).lost == {run.run_id}
    assert not world.finish(run)
    world.later(LEASE)
    assert {lease.attempt for lease in world.beat.ended(10)} == {2}


def test_a_late_run_that_fails_is_tried_again_beside_the_schedule(world: World) -> None:
    """Its job has moved on, so its next attempt comes through the outbox."""
    name = world.add()
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    run = world.start(claim)
    assert run is not None and world.finish(run, failed(run))
    assert (world.job(name)["retryat"], world.instant(name, "nextruntime")) == (None, NOON + MINUTE)
    world.later(8)
    again = world.running()
    assert (again.scheduled_for, again.attempt) == (NOON, 2)
    world.finish(again)
    assert world.instant(name, "nextruntime") == NOON + MINUTE
    world.later(20)
    assert world.claim().claims == []
    assert world.states(name) == ["retry", "success"]


# The database's own guard


@pytest.mark.parametrize("state", ["retry", "dispatched", "dlq", "failed", "unheard of", "claimed"])
def test_the_database_refuses_an_illegal_transition(world: World, state: str) -> None:
    name = world.add()
    world.finish(world.running())
    with pytest.raises(Exception, match=r"(?i)JobRuns_Transitions"):
        world.sql(
            "UPDATE JobRuns SET PriorState = State, State = ? WHERE Namespace = ? AND JobName = ?",
            state,
            world.namespace,
            name,
        )
    assert world.states(name) == ["success"]


def test_the_database_refuses_a_run_that_was_born_running(world: World) -> None:
    name = world.add()
    world.claim_one()
    with pytest.raises(Exception, match=r"(?i)JobRuns_Transitions"):
        world.sql(
            "UPDATE JobRuns SET PriorState = 'new', State = 'running' WHERE Namespace = ? AND JobName = ?",
            world.namespace,
            name,
        )


def test_a_long_error_is_kept_by_its_beginning_and_a_long_traceback_by_its_end(world: World) -> None:
    name = world.add()
    run = world.running()
    error, traceback = "ValueError('no row')" + "x" * 5000, "x" * 20_000 + "the last line"
    assert world.finish(run, Ending("dlq", "long", None, 1, 0, error, traceback))
    row = world.runs(name)[0]
    assert len(row["error"]) == 2000 and row["error"].startswith("ValueError('no row')x")
    assert row["error"].endswith("x ...")
    assert len(row["traceback"]) == 16_000 and row["traceback"].startswith("... x")
    assert row["traceback"].endswith("the last line")


def test_an_error_that_is_no_text_is_stored_as_far_as_it_is(world: World) -> None:
    """The name of a file may hold any bytes; the outcome of the other runs must not wait for it."""
    name = world.add()
    run = world.running()
    assert world.finish(run, Ending("dlq", "odd", None, 1, 0, "no file \udcff\0here", "Traceback \udcff"))
    error = world.runs(name)[0]["error"]
    assert error.startswith("no file ") and error.endswith("here")


def test_a_slot_that_ended_with_a_later_attempt_is_told_once_with_those_before(world: World) -> None:
    world.add("again", TaskName="shop.add", Options='{"ignore_result": true}')
    first = world.running()
    world.finish(first, failed(first))
    results = world.store.results()
    assert results.unended(10, 60.0) == []
    world.later(3600)
    second = world.running()
    assert results.unended(10, 60.0) == []
    world.finish(second)
    (slot,) = results.unended(10, 60.0)
    assert (slot.run_id, slot.job_name, slot.attempt, slot.state) == (second.run_id, "again", 2, "success")
    assert (slot.task_name, slot.options) == ("shop.add", '{"ignore_result": true}')
    assert slot.earlier == ((first.run_id, 1),)
    results.ended([second.run_id, first.run_id])
    assert results.unended(10, 60.0) == []


def test_an_outcome_of_an_earlier_try_ends_nothing_that_a_later_one_has_begun(world: World) -> None:
    """A worker that was cut off writes late.

    Celery's retry of the run goes on elsewhere by then.
    """
    name = world.add()
    claim = world.claim_one()
    world.publish(claim)
    first = world.start(claim)
    other = world.store.for_worker("worker-2")
    second = other.start([world.request(claim, celery_retries=1)])[claim.run_id]
    assert first is not None and (first.fence, first.claim_id) == (second.fence, second.claim_id)
    assert world.worker.finish([(first, lost(first))]) == {claim.run_id}
    assert (world.job(name)["lockedby"], world.states(name)) == ("worker-2", ["running"])
    assert other.finish([(second, after_success())]) == set()
    assert world.states(name) == ["success"]


def test_an_outcome_of_an_earlier_try_ends_no_later_one_beside_other_runs(world: World) -> None:
    """The same where runs of the job may overlap: the run's own row decides."""
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    world.publish(claim)
    first = world.start(claim)
    other = world.store.for_worker("worker-2")
    second = other.start([world.request(claim, celery_retries=1)])[claim.run_id]
    assert first is not None
    assert world.worker.finish([(first, lost(first))]) == {claim.run_id}
    assert world.states(name) == ["running"]
    assert other.finish([(second, after_success())]) == set()
    assert world.states(name) == ["success"]

"""What becomes of slots that come due while a run goes on, by the policy of the job."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_sqlbeat.checks.gather import read_slow
from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.model import PauseJob, StartedRun
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import DLQ, LEFT_TO_OTHERS, RETRY, SUCCESS, Ending
from tests.contract.conftest import Place
from tests.support.world import NOON, World

SECOND = timedelta(seconds=1)
LONG = 3.3  # seconds that each run takes, with a slot every 2 s


def add(world: World, overlap: str | None, every: str = "every 2s", **policies: Any) -> str:
    if overlap is not None:
        policies["overlap"] = overlap
    return world.add(Schedule=every, Policies=json.dumps(policies) if policies else None)


def run_for(world: World, seconds: float = LONG, ending: Ending | None = None) -> StartedRun:
    run = world.running()
    world.later(seconds)
    assert world.finish(run, ending)
    return run


def history(world: World, name: str) -> list[tuple[float, str, str | None, int]]:
    """Each row as seconds from noon to its first slot, state, reason and number of slots."""
    return [
        ((_instant(row["scheduledfor"]) - NOON) / SECOND, row["state"], row["reason"], row["slotcount"])
        for row in world.runs(name)
    ]


def _instant(value: Any) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    assert isinstance(found, datetime)
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


@pytest.mark.parametrize("overlap", [None, "queue"])
@pytest.mark.parametrize("cadence", ["from_start", "fixed_rate"])
def test_a_job_queues_one_run_for_the_latest_slot_that_came_due(
    world: World, overlap: str | None, cadence: str
) -> None:
    name = add(world, overlap, cadence=cadence)
    run_for(world, 7.0)
    assert world.claim_one().slot.scheduled_for == NOON + 6 * SECOND
    assert history(world, name) == [(0, "success", None, 1), (2, "skipped", "overlap", 2), (6, "claimed", None, 1)]


@pytest.mark.parametrize("cadence", ["from_start", "fixed_rate"])
def test_a_job_that_skips_runs_at_its_next_point_and_records_what_came_due(world: World, cadence: str) -> None:
    name = add(world, "skip", cadence=cadence)
    for turn in range(3):
        run_for(world)
        assert world.claim().claims == [], "what came due during the run does not run"
        assert world.claim().jobs_read == 0
        world.at(NOON + (turn + 1) * 4 * SECOND)
    assert history(world, name) == [
        (0, "success", None, 1),
        (2, "skipped", "overlap", 1),
        (4, "success", None, 1),
        (6, "skipped", "overlap", 1),
        (8, "success", None, 1),
        (10, "skipped", "overlap", 1),
    ]


def test_a_job_that_skips_keeps_to_its_crontab(world: World) -> None:
    name = add(world, "skip", "cron * * * * *")
    run_for(world, 150)
    assert world.claim().claims == []
    assert world.instant(name, "nextruntime") == NOON + 180 * SECOND
    assert history(world, name) == [(0, "success", None, 1), (60, "skipped", "overlap", 2)]


def test_a_fixed_delay_has_nothing_to_skip(world: World) -> None:
    name = add(world, "skip", cadence="fixed_delay")
    run_for(world, 7.0)
    assert world.claim().jobs_read == 0
    world.later(2)
    assert world.claim_one().slot.scheduled_for == NOON + 9 * SECOND
    assert [row[1] for row in history(world, name)] == ["success", "claimed"]


@pytest.mark.parametrize("ending", [Ending(SUCCESS), Ending(DLQ, "retries exhausted", None, 1)], ids=["success", "dlq"])
def test_however_a_run_ends_what_came_due_meanwhile_is_skipped(world: World, ending: Ending) -> None:
    name = add(world, "skip")
    run_for(world, LONG, ending)
    assert world.claim().claims == []
    assert history(world, name)[1:] == [(2, "skipped", "overlap", 1)]


def test_what_came_due_between_two_attempts_is_skipped_too(world: World) -> None:
    name = add(world, "skip", cadence="fixed_rate")
    run_for(world, 1.0, Ending(RETRY, "failed", 4.0, 1))
    world.later(4)
    run_for(world, 2.0)
    assert world.claim().claims == []
    assert world.instant(name, "nextruntime") == NOON + 8 * SECOND
    assert history(world, name)[-1] == (2, "skipped", "overlap", 3)


def test_slots_missed_after_the_run_are_a_misfire_and_not_skipped(world: World) -> None:
    name = add(world, "skip", cadence="fixed_rate")
    run_for(world)
    world.at(NOON + 11 * SECOND)  # no beat was there
    assert world.claim().claims == []
    assert world.claim_one().slot.scheduled_for == NOON + 10 * SECOND
    assert history(world, name)[1:] == [
        (2, "skipped", "overlap", 1),
        (4, "skipped", "misfire", 3),
        (10, "claimed", None, 1),
    ]


def test_a_slot_set_by_hand_is_run_although_a_run_went_on_at_that_time(world: World) -> None:
    name = add(world, "skip")
    run_for(world)
    world.claim()
    world.change(name, NextRunTime=NOON + SECOND)
    assert world.claim_one().slot.scheduled_for >= NOON + SECOND


def test_an_extra_slot_that_runs_long_skips_the_schedules_own(world: World) -> None:
    name = add(world, "skip", "every 60s")
    world.change(name, NextRunTime=NOON + 60 * SECOND)
    job = world.record(name)
    assert world.add_slot(job.job_id)
    run_for(world, 90)
    assert world.claim().claims == []
    assert world.instant(name, "nextruntime") == NOON + 120 * SECOND
    assert history(world, name)[-1] == (60, "skipped", "overlap", 1)


def test_a_slot_that_waited_for_the_broker_skips_nothing(world: World) -> None:
    """No run went on: what was missed is a matter of misfire, and the latest slot runs."""
    name = add(world, "skip", cadence="fixed_rate")
    claim = world.claim_one()
    world.beat.release_claims([claim], "the broker is away")
    world.later(7)
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    assert world.claim_one().slot.scheduled_for == NOON + 6 * SECOND
    assert "success" not in world.states(name)


# replace


def replaceable(world: World) -> Mapping[str, Any]:
    (found,) = world.beat.replaceable(10)
    return {"run": found, **found._asdict()}


def test_a_run_is_replaced_when_the_next_slot_comes(world: World) -> None:
    name = add(world, "replace")
    run = world.running()
    assert world.beat.replaceable(10) == []
    assert world.beat.next_deadlines().ends_at() == NOON + 2 * SECOND
    world.later(2)
    assert replaceable(world)["started"] == 1
    assert world.beat.replace([replaceable(world)["run"]]) == {run.run_id}
    assert world.beat.replaceable(10) == []
    assert world.worker.extend([(run, 60)]).lost == {run.run_id}, "its lease went first"
    assert not world.finish(run), "who lost the lease writes nothing"
    claim = world.claim_one()
    assert (claim.slot.scheduled_for, claim.fence) > (NOON, run.fence)
    assert history(world, name) == [(0, "cancelled", "replaced", 1), (2, "claimed", None, 1)]


def test_two_beats_replace_a_run_once(world: World) -> None:
    add(world, "replace")
    run = world.running()
    world.later(2)
    found = world.beat.replaceable(10)
    assert world.beat.replace(found) == {run.run_id}
    assert world.store.for_beat("beat-2").replace(found) == set()


def test_a_run_that_ended_meanwhile_is_not_replaced(world: World) -> None:
    name = add(world, "replace")
    run = world.running()
    world.later(2)
    found = world.beat.replaceable(10)
    assert world.finish(run)
    assert world.beat.replace(found) == set()
    assert world.states(name) == ["success"]


def test_what_waits_in_the_queue_is_not_replaced_but_looked_at_again_with_the_next_slot(world: World) -> None:
    """Each slot would send one more message while all workers are down."""
    add(world, "replace")
    claim = world.claim_one()
    world.publish(claim)
    world.later(3)
    waiting = replaceable(world)
    is_replaced, later = world.planner.makes_room(waiting["run"])
    assert not is_replaced and later == NOON + 4 * SECOND
    world.beat.postpone_replacing([(waiting["run"], later)])
    assert world.beat.replaceable(10) == []
    assert world.start(claim) is not None
    world.later(1)
    assert world.planner.makes_room(replaceable(world)["run"]) == (True, None)


def test_a_run_is_not_replaced_by_what_was_read_before_another_beat_postponed_it(world: World, place: Place) -> None:
    """Both beats read the slot that has come.

    The first while the run is queued, the second after its start.
    """
    name = add(world, "replace")
    claim = world.claim_one()
    world.publish(claim)
    world.later(3)
    queued = world.beat.replaceable(10)
    assert world.start(claim) is not None
    second = place.store(world.namespace)
    try:
        other = second.for_beat("beat-2")
        started = other.replaceable(10)
        assert [run.started for run in started] == [1]
        world.beat.postpone_replacing([(run, NOON + 4 * SECOND) for run in queued])
        assert other.replace(started) == set(), "the slot that makes room is a later one now"
        assert world.states(name) == ["running"]
        world.later(1)
        assert other.replace(started) == {claim.run_id}
    finally:
        second.close()


def test_a_late_postponement_does_not_bring_an_earlier_slot_back(world: World, place: Place) -> None:
    add(world, "replace")
    claim = world.claim_one()
    world.publish(claim)
    world.later(3)
    read = world.beat.replaceable(10)
    second = place.store(world.namespace)
    try:
        world.later(2)
        second.for_beat("beat-2").postpone_replacing([(run, NOON + 6 * SECOND) for run in read])
        world.beat.postpone_replacing([(run, NOON + 4 * SECOND) for run in read])
        assert world.beat.replaceable(10) == []
        assert world.beat.next_deadlines().replace_at == NOON + 6 * SECOND
    finally:
        second.close()


def test_a_job_that_was_paused_meanwhile_keeps_its_run(world: World, place: Place) -> None:
    name = add(world, "replace")
    world.running()
    world.later(2)
    found = world.beat.replaceable(10)
    second = place.store(world.namespace)
    try:
        assert second.for_admin().write_jobs([PauseJob(name, "paused")]).done
    finally:
        second.close()
    assert world.beat.replace(found) == set()
    assert world.states(name) == ["running"]


def test_a_paused_job_keeps_its_run(world: World) -> None:
    name = add(world, "replace")
    world.running()
    assert world.write(PauseJob(name, "paused"))
    world.later(2)
    assert world.beat.replaceable(10) == []
    assert world.beat.next_deadlines().replace_at is None


def test_a_job_that_is_no_longer_to_be_replaced_keeps_its_run(world: World) -> None:
    name = add(world, "replace")
    world.running()
    world.change(name, Policies=None)
    world.later(2)
    assert world.planner.makes_room(replaceable(world)["run"]) == (False, None)


def test_a_retry_that_waits_makes_room_for_the_next_slot(world: World) -> None:
    name = add(world, "replace", cadence="fixed_rate")
    run_for(world, 1.0, Ending(RETRY, "failed", 4.0, 1))
    world.later(4)
    claim = world.claim_one()
    assert (claim.slot.scheduled_for, claim.slot.attempt) == (NOON + 4 * SECOND, 1)
    assert history(world, name) == [
        (0, "cancelled", "replaced", 1),
        (2, "skipped", "overlap", 1),
        (4, "claimed", None, 1),
    ]
    world.publish(claim)
    run = world.start(claim)
    assert run is not None and world.finish(run)
    assert world.job(name)["retryat"] is None


@pytest.mark.parametrize("set_for", [3, 60])
def test_a_retry_that_waits_makes_no_room_where_an_operator_has_set_the_next_slot(world: World, set_for: int) -> None:
    name = add(world, "replace", cadence="fixed_rate")
    run = world.running()
    world.later(1)
    world.change(name, NextRunTime=NOON + set_for * SECOND)
    assert world.finish(run, Ending(RETRY, "failed", 4.0, 1))
    world.later(4)
    claim = world.claim_one()
    assert (claim.slot.scheduled_for, claim.slot.attempt) == (NOON, 2)
    world.publish(claim)
    again = world.start(claim)
    assert again is not None and world.finish(again)
    assert world.instant(name, "nextruntime") == NOON + set_for * SECOND


# allow, with max_parallel


def overlapping(world: World) -> StartedRun:
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    run = world.start(claim)
    assert run is not None
    return run


def test_no_more_than_max_parallel_runs_go_on_beside_each_other(world: World) -> None:
    name = add(world, "allow", max_parallel=2)
    first = overlapping(world)
    world.later(2)
    overlapping(world)
    world.later(2)
    assert world.claim().claims == []
    assert history(world, name)[-1] == (4, "skipped", "overlap", 1)
    assert world.finish(first)
    world.later(2)
    assert overlapping(world).scheduled_for == NOON + 6 * SECOND


def test_a_message_that_waits_for_a_worker_counts_among_max_parallel(world: World) -> None:
    name = add(world, "allow", max_parallel=1)
    world.beat.mark_dispatched([world.claim_one()])
    world.later(2)
    assert world.claim().claims == []
    assert history(world, name)[-1][1:3] == ("skipped", "overlap")


def test_what_nobody_will_tell_the_end_of_does_not_count_among_max_parallel(world: World) -> None:
    add(world, "allow", max_parallel=1)
    world.beat.mark_dispatched([world.claim_one()], LEFT_TO_OTHERS)
    world.later(2)
    assert world.claim_one().slot.scheduled_for == NOON + 2 * SECOND


# what is told of it


def test_check_names_the_jobs_whose_runs_take_longer_than_their_period(world: World) -> None:
    rules = Rules(policies_from_setting({}), "UTC", 120.0, 3)
    slow = add(world, "skip", cadence="fixed_rate")
    for turn in range(2):
        run_for(world)
        world.claim()
        world.at(NOON + (turn + 1) * 4 * SECOND)
    world.change(slow, NextRunTime=NOON + 3600 * SECOND)
    add(world, None, "every 60s")
    run_for(world, 1.0)
    (found,) = read_slow(world.store, rules, 5.0)
    assert (found.job_name, found.overlap, found.is_chosen) == (slow, "skip", True)
    assert "about 3.3 s, longer than its period of 2.0 s" in str(found)

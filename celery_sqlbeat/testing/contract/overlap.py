"""What becomes of slots that come due while a run goes on, by the policy of the job."""

import json
from typing import Any

import pytest

from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.model.lifecycle import DLQ, LEFT_TO_OTHERS, SUCCESS, Ending
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import MINUTE, SECOND, World

LONG = 3.3  # seconds that each run takes, with a slot every 2 s


class OverlapContract(Contract):
    """Rules of the policies `queue`, `skip` and `allow`."""

    @pytest.mark.parametrize("overlap", [None, "queue"])
    @pytest.mark.parametrize("cadence", ["from_start", "fixed_rate"])
    def test_a_job_queues_one_run_for_the_latest_slot_that_came_due(
        self, world: World, overlap: str | None, cadence: str
    ) -> None:
        name = add_overlapping(world, overlap, cadence=cadence)
        run_for(world, 7.0)
        assert world.claim_one().slot.scheduled_for == world.noon + 6 * SECOND
        assert world.history(name) == [
            (0, "success", None, 1),
            (2, "skipped", "overlap", 2),
            (6, "claimed", None, 1),
        ]

    @pytest.mark.parametrize("cadence", ["from_start", "fixed_rate"])
    def test_a_job_that_skips_runs_at_its_next_point_and_records_what_came_due(
        self, world: World, cadence: str
    ) -> None:
        name = add_overlapping(world, "skip", cadence=cadence)
        for turn in range(3):
            run_for(world)
            assert world.claim().claims == [], "what came due during the run does not run"
            assert world.claim().jobs_read == 0
            world.at(world.noon + (turn + 1) * 4 * SECOND)
        assert world.history(name) == [
            (0, "success", None, 1),
            (2, "skipped", "overlap", 1),
            (4, "success", None, 1),
            (6, "skipped", "overlap", 1),
            (8, "success", None, 1),
            (10, "skipped", "overlap", 1),
        ]

    def test_a_fixed_delay_has_nothing_to_skip(self, world: World) -> None:
        name = add_overlapping(world, "skip", cadence="fixed_delay")
        run_for(world, 7.0)
        assert world.claim().jobs_read == 0
        world.later(2)
        assert world.claim_one().slot.scheduled_for == world.noon + 9 * SECOND
        assert world.states(name) == ["success", "claimed"]

    @pytest.mark.parametrize(
        "ending", [Ending(SUCCESS), Ending(DLQ, "retries exhausted", None, 1)], ids=["success", "dlq"]
    )
    def test_however_a_run_ends_what_came_due_meanwhile_is_skipped(self, world: World, ending: Ending) -> None:
        name = add_overlapping(world, "skip")
        run_for(world, LONG, ending)
        assert world.claim().claims == []
        assert world.history(name)[1:] == [(2, "skipped", "overlap", 1)]

    def test_what_came_due_between_two_attempts_is_skipped_too(self, world: World) -> None:
        name = add_overlapping(world, "skip", cadence="fixed_rate")
        run_for(world, 1.0, world.failure(4.0))
        world.later(4)
        run_for(world, 2.0)
        assert world.claim().claims == []
        assert world.job(name).next_run_time == world.noon + 8 * SECOND
        assert world.history(name)[-1] == (2, "skipped", "overlap", 3)

    def test_slots_missed_after_the_run_are_a_misfire_and_not_skipped(self, world: World) -> None:
        name = add_overlapping(world, "skip", cadence="fixed_rate")
        run_for(world)
        world.at(world.noon + 11 * SECOND)  # no beat was there
        assert world.claim().claims == []
        assert world.claim_one().slot.scheduled_for == world.noon + 10 * SECOND
        assert world.history(name)[1:] == [
            (2, "skipped", "overlap", 1),
            (4, "skipped", "misfire", 3),
            (10, "claimed", None, 1),
        ]

    def test_a_slot_set_by_hand_is_run_although_a_run_went_on_at_that_time(self, world: World) -> None:
        name = add_overlapping(world, "skip")
        run_for(world)
        world.claim()
        world.change_time(name, world.noon + SECOND)
        assert world.claim_one().slot.scheduled_for >= world.noon + SECOND

    def test_an_extra_slot_that_runs_long_skips_the_schedules_own(self, world: World) -> None:
        name = add_overlapping(world, "skip", "every 60s")
        world.change_time(name, world.noon + MINUTE)
        world.add_slot(name)
        run_for(world, 90)
        assert world.claim().claims == []
        assert world.job(name).next_run_time == world.noon + 2 * MINUTE
        assert world.history(name)[-1] == (60, "skipped", "overlap", 1)

    def test_a_slot_that_waited_for_the_broker_skips_nothing(self, world: World) -> None:
        """No run went on: what was missed is a matter of misfire, and the latest slot runs."""
        name = add_overlapping(world, "skip", cadence="fixed_rate")
        world.give_back(world.claim_one())
        world.later(7)
        world.forgotten()
        assert world.claim_one().slot.scheduled_for == world.noon + 6 * SECOND
        assert "success" not in world.states(name)

    # allow, with max_parallel

    def test_no_more_than_max_parallel_runs_go_on_beside_each_other(self, world: World) -> None:
        name = add_overlapping(world, "allow", max_parallel=2)
        first = world.overlapping()
        world.later(2)
        world.overlapping()
        world.later(2)
        assert world.claim().claims == []
        assert world.history(name)[-1] == (4, "skipped", "overlap", 1)
        assert world.finish(first)
        world.later(2)
        assert world.overlapping().scheduled_for == world.noon + 6 * SECOND

    def test_a_message_that_waits_for_a_worker_counts_among_max_parallel(self, world: World) -> None:
        name = add_overlapping(world, "allow", max_parallel=1)
        world.forgotten()
        world.later(2)
        assert world.claim().claims == []
        assert world.history(name)[-1][1:3] == ("skipped", "overlap")

    def test_what_nobody_will_tell_the_end_of_does_not_count_among_max_parallel(self, world: World) -> None:
        name = add_overlapping(world, "allow", max_parallel=1)
        world.dispatch(world.claim_one(), reason=LEFT_TO_OTHERS)
        world.later(2)
        assert world.claim_one().job_name == name


def add_overlapping(world: World, overlap: str | None, every: str = "every 2s", **policies: Any) -> str:
    """Add a job that is due every two seconds, with these policies."""
    world.at(world.noon)
    if overlap is not None:
        policies["overlap"] = overlap
    return world.add(schedule=every, policies=json.dumps(policies) if policies else None)


def run_for(world: World, seconds: float = LONG, ending: Ending | None = None) -> StartedRun:
    """Run the only due job for so long."""
    run = world.running()
    world.later(seconds)
    assert world.finish(run, ending)
    return run

"""When a job goes on after a run, by its cadence, and what a failure or a lost lease leads to."""

from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.model.lifecycle import Backoff, Ending, after_failure, after_lost_lease
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import HOUR, LEASE, MINUTE, OVERLAP, SECOND, World

CADENCES = [
    pytest.param({}, id="from_start"),
    pytest.param({"policies": '{"cadence": "fixed_rate"}'}, id="fixed_rate"),
    pytest.param({"policies": '{"cadence": "fixed_delay"}'}, id="fixed_delay"),
    pytest.param({"schedule": "cron * * * * *"}, id="cron"),
]


class CadenceContract(Contract):
    """Rules of what an outcome leaves in its job: the next run, or the retry."""

    def test_from_start_counts_from_the_claim_not_from_slot_or_end(self, world: World) -> None:
        name = world.add(next_run_time=world.noon - 7 * SECOND)
        run = world.running()
        claimed_at = world.job(name).claimed_at
        world.later(1)
        world.finish(run)
        assert world.job(name).next_run_time == claimed_at + MINUTE

    def test_from_start_counts_from_the_claim_of_the_attempt_that_succeeded(self, world: World) -> None:
        name = world.add()
        run = retried(world, world.running(), world.failure(1.0))
        claimed_at = world.job(name).claimed_at
        world.later(0.1)
        world.finish(run)
        assert world.job(name).next_run_time == claimed_at + MINUTE

    def test_fixed_rate_does_not_drift(self, world: World) -> None:
        name = world.add(policies='{"cadence": "fixed_rate"}')
        slots = []
        for late in (3.0, 11.5, 0.25, 44.0, 29.0):
            world.at(world.job(name).next_run_time + timedelta(seconds=late))
            run = world.running()
            slots.append(run.scheduled_for)
            world.later(late)
            world.finish(run)
        assert slots == [world.noon + n * MINUTE for n in range(5)]
        assert world.states(name) == ["success"] * 5

    def test_fixed_rate_keeps_its_grid_through_retries(self, world: World) -> None:
        name = world.add(policies='{"cadence": "fixed_rate"}')
        slot = world.job(name).next_run_time
        world.finish(retried(world, world.running(), world.failure(1.0)))
        assert world.job(name).next_run_time == slot + MINUTE

    def test_fixed_delay_counts_from_the_end_of_the_last_attempt(self, world: World) -> None:
        name = world.add(policies='{"cadence": "fixed_delay"}')
        run = retried(world, world.running(), world.failure(1.0))
        world.later(1)
        world.finish(run)
        (_, last) = world.runs(name)
        assert last.finished_at is not None and world.job(name).next_run_time == last.finished_at + MINUTE

    def test_a_cron_job_takes_the_next_point_of_its_grid(self, world: World) -> None:
        world.at(world.noon)
        name = world.add(schedule="cron */5 * * * *")
        world.later(70)
        run = world.running()
        world.later(30)
        world.finish(run)
        assert world.job(name).next_run_time == world.noon + 5 * MINUTE

    def test_a_cron_job_whose_retries_passed_a_slot_records_it(self, world: World) -> None:
        world.at(world.noon)
        name = world.add(schedule="cron * * * * *")
        run = world.running()
        world.later(150)
        world.extend(run)
        world.finish(retried(world, run, world.failure(0.0)))
        world.running()
        assert [(row.state, row.slot_count) for row in world.runs(name)] == [
            ("retry", 1),
            ("success", 1),
            ("skipped", 1),
            ("running", 1),
        ]

    def test_slots_that_a_late_retry_passed_are_recorded(self, world: World) -> None:
        world.at(world.noon)
        name = world.add(schedule="cron * * * * *")
        world.finish(world.running(), world.failure(8.0))
        world.later(600)
        run = world.running()
        assert (run.attempt, run.scheduled_for) == (2, world.noon)
        world.finish(run)
        assert world.claim_one().slot.scheduled_for == world.noon + 10 * MINUTE
        gap = world.runs(name)[2]
        assert (gap.state, gap.slot_count) == ("skipped", 9)

    @pytest.mark.parametrize("fields", CADENCES)
    @pytest.mark.parametrize("moment", ["while it runs", "before the retry"])
    def test_the_next_slot_is_later_than_the_one_ended_though_the_clock_stepped_back(
        self, world: World, fields: dict[str, Any], moment: str
    ) -> None:
        world.at(world.noon)
        name = world.add(**fields)
        run = world.running()
        if moment == "before the retry":
            run = retried(world, run, world.failure(0.0))
        world.at(world.noon - 2 * HOUR)
        world.finish(run)
        assert world.job(name).next_run_time > world.noon

    def test_a_retry_claimed_after_the_clock_stepped_back_still_leads_to_a_later_slot(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.at(world.noon - 2 * HOUR)
        world.finish(retried(world, run, world.failure(0.0)))
        assert world.job(name).next_run_time == world.noon + MINUTE

    # Failures

    def test_a_failure_frees_the_job_and_leaves_its_next_run(self, world: World) -> None:
        name = world.add()
        slot = world.job(name).next_run_time
        run = world.running()
        at = world.later(1)
        assert world.finish(run, world.failure(8.0, "ValueError: no"))
        job = world.job(name)
        assert (job.locked_by, job.last_run_time, job.next_run_time) == (None, None, slot)
        assert job.retry_at == world.near(at + 8 * SECOND)
        (row,) = world.runs(name)
        assert (row.state, row.prior_state, row.error) == ("retry", "running", "ValueError: no")

    def test_a_retry_is_a_new_attempt_under_a_new_run_id_and_a_higher_fence(self, world: World) -> None:
        world.add()
        first = world.running()
        second = retried(world, first, world.failure(1.0))
        assert second.run_id != first.run_id and second.claim_id != first.claim_id
        assert second.fence > first.fence
        assert (second.attempt, second.scheduled_for, second.failures) == (2, first.scheduled_for, 1)

    def test_a_retry_is_not_due_before_its_time(self, world: World) -> None:
        world.add()
        world.finish(world.running(), world.failure(60.0))
        assert world.claim().jobs_read == 0
        world.later(59.9)
        assert world.claim().jobs_read == 0
        world.later(0.1)
        assert world.claim_one().slot.attempt == 2

    def test_a_waiting_retry_keeps_no_other_job_waiting(self, world: World) -> None:
        world.add()
        world.finish(world.running(), world.failure(60.0))
        other = world.add()
        assert [claim.job_name for claim in world.claim().claims] == [other]

    def test_a_slot_out_of_retries_is_a_dead_letter_and_the_job_goes_on(self, world: World) -> None:
        name = world.add(policies='{"max_retries": 2}')
        run = world.running()
        for _ in range(2):
            run = retried(world, run, failed(run))
        claimed_at = world.job(name).claimed_at
        assert world.finish(run, failed(run, "ZeroDivisionError"))
        assert world.states(name) == ["retry", "retry", "dlq"]
        dead = world.runs(name)[-1]
        assert (dead.failures, dead.error, dead.prior_state) == (3, "ZeroDivisionError", "failed")
        job = world.job(name)
        assert (job.retry_at, job.last_run_time, job.next_run_time) == (None, None, claimed_at + MINUTE)

    def test_after_a_dead_letter_the_next_slot_counts_anew(self, world: World) -> None:
        name = world.add(policies='{"max_retries": 0}', schedule="every 1s")
        run = world.running()
        world.finish(run, failed(run))
        assert world.states(name) == ["dlq"]
        world.later(1)
        following = world.running()
        assert (following.attempt, following.failures, following.lost_leases) == (1, 0, 0)

    def test_an_overlapping_run_that_fails_is_tried_again_under_the_same_slot(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        run = world.overlapping()
        following = world.job(name).next_run_time
        assert world.finish(run, world.failure(1.0))
        assert world.job(name).next_run_time == following
        world.later(1)
        again = world.forgotten()
        assert (again.slot.scheduled_for, again.slot.attempt, again.slot.failures) == (run.scheduled_for, 2, 1)
        assert world.finish(world.begin(again))
        assert world.claim().claims == []
        assert world.states(name) == ["retry", "success"]

    # Lost leases

    def test_lost_leases_are_counted_apart_from_failures(self, world: World) -> None:
        world.add()
        run = world.running()
        run = retried(world, run, after_lost_lease(run.lost_leases, 5))
        assert (run.attempt, run.failures, run.lost_leases) == (2, 0, 1)
        run = retried(world, run, world.failure(0.0))
        assert (run.attempt, run.failures, run.lost_leases) == (3, 1, 1)

    def test_a_slot_that_loses_lease_after_lease_is_a_dead_letter(self, world: World) -> None:
        name = world.add()
        run = world.running()
        for _ in range(2):
            run = retried(world, run, after_lost_lease(run.lost_leases, 2))
        world.finish(run, after_lost_lease(run.lost_leases, 2))
        assert world.states(name) == ["retry", "retry", "dlq"]
        assert world.runs(name)[-1].error == "lease lost 3 times"
        assert world.job(name).retry_at is None

    def test_uncounted_losses_are_no_reason_to_give_up(self, world: World) -> None:
        world.add()
        run = world.running()
        for attempt in range(2, 10):
            run = retried(world, run, after_lost_lease(run.lost_leases, 2, counted=False))
            assert (run.attempt, run.failures, run.lost_leases) == (attempt, 0, 0)

    def test_a_slot_whose_workers_die_again_and_again_is_a_dead_letter(self, world: World) -> None:
        name = world.add()
        for _ in range(6):
            world.running()
            world.later(LEASE)
            world.sweep()
        assert world.states(name) == ["retry"] * 5 + ["dlq"]
        assert world.job(name).next_run_time == world.noon + timedelta(seconds=5 * LEASE) + MINUTE


def failed(run: StartedRun, error: str | None = None) -> Ending:
    """Return what a worker decides about a run that raised; it is tried again at once."""
    return after_failure(run.failures, run.max_retries, Backoff(), lambda: 0.0, error)


def retried(world: World, run: StartedRun, ending: Ending) -> StartedRun:
    """End a run that is to be tried again, and start the attempt that follows."""
    assert world.finish(run, ending)
    world.later(ending.retry_seconds or 0)
    return world.running()

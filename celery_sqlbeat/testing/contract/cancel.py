"""Cancellation: what has not begun ends at once, what runs is asked to stop."""

from typing import Any

import pytest

from celery_sqlbeat.model import RefusedStart, StartedRun
from celery_sqlbeat.model.lifecycle import RETRY, Ending, after_lost_lease, after_success, left_to_others, released
from celery_sqlbeat.model.one_offs import Asked, Cancellation, CancelRequest
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.testing.contract.base import JOBS, Contract
from celery_sqlbeat.testing.contract.one_offs import submitted
from celery_sqlbeat.testing.contract.races import both, patiently
from celery_sqlbeat.testing.world import LEASE, MINUTE, World

DONE = Cancellation("cancelled", is_done=True, is_asked=False)
ASKED = Cancellation("running", is_done=False, is_asked=True)


def cancel(
    world: World, run_id: str, by: str = "ann", why: str = "wrong", store: Store | None = None
) -> Cancellation | None:
    """Cancel a run."""
    return (store or world.store).cancel([CancelRequest(run_id, by, why)]).get(run_id)


def begun(world: World, fields: dict[str, Any]) -> StartedRun:
    """Return a run of a job that has these policies; one that overlaps was dispatched before."""
    return world.overlapping() if fields else world.running()


def check_cancelled(world: World, run_id: str) -> None:
    """Check that a run has ended as cancelled, and says why."""
    run = world.run(run_id)
    assert (run.state, run.due_at, run.cancel_by, run.cancel_reason) == ("cancelled", None, "ann", "wrong")
    assert run.finished_at is not None and run.cancel_at is not None
    assert run.reason is not None and "ann" in run.reason and "wrong" in run.reason


class CancelContract(Contract):
    """Rules of `cancel`, and of what follows it."""

    def test_who_cancels_a_run_that_is_not_known_gets_no_answer(self, world: World) -> None:
        assert cancel(world, world.ids.run_ids(1)[0]) is None

    # What has not begun

    def test_a_one_off_that_waits_ends_at_once(self, world: World) -> None:
        run_id = submitted(world)
        assert cancel(world, run_id) == DONE
        check_cancelled(world, run_id)
        assert world.claim().claims == []
        assert world.store.next_deadlines().starts_at() is None

    def test_a_one_off_that_waits_for_its_retry_ends_at_once(self, world: World) -> None:
        run_id = submitted(world)
        world.finish(world.running(), world.failure(0.0))
        assert cancel(world, run_id) == DONE
        check_cancelled(world, run_id)
        assert world.claim().claims == []

    def test_a_job_whose_slot_waits_for_its_retry_goes_on_with_the_next(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.finish(run, world.failure(10.0))
        changes = world.changes()
        assert cancel(world, run.run_id) == DONE
        check_cancelled(world, run.run_id)
        job = world.job(name)
        assert (job.retry_at, job.next_run_time, job.enabled) == (None, world.noon + MINUTE, 1)
        assert world.changes() > changes
        world.later(60)
        assert world.claim_one().slot.scheduled_for == world.noon + MINUTE

    def test_a_slot_that_was_given_back_ends_at_once(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        world.give_back(claim, seconds=5.0)
        assert cancel(world, claim.run_id) == DONE
        assert (world.job(name).retry_at, world.job(name).next_run_time) == (None, world.noon + MINUTE)

    def test_an_extra_slot_that_waits_ends_at_once_and_the_schedule_stays(self, world: World) -> None:
        name = world.add(next_run_time=world.noon + MINUTE)
        world.add_slot(name)
        (waiting,) = world.runs(name)
        assert cancel(world, waiting.run_id) == DONE
        check_cancelled(world, waiting.run_id)
        assert world.claim().claims == []
        assert world.job(name).next_run_time == world.noon + MINUTE

    def test_a_retry_waits_on_while_an_extra_slot_of_its_job_is_cancelled(self, world: World) -> None:
        name = world.add()
        failed = world.running()
        world.finish(failed, world.failure(5.0))
        world.add_slot(name)
        extra = world.running()
        assert extra.run_id != failed.run_id
        assert cancel(world, failed.run_id) == DONE
        assert world.finish(extra)
        assert (world.job(name).retry_at, world.job(name).next_run_time) == (None, world.noon + MINUTE)

    @pytest.mark.parametrize("fields", JOBS)
    @pytest.mark.parametrize("is_published", [False, True])
    def test_the_message_of_a_claim_is_refused(self, world: World, fields: dict[str, Any], is_published: bool) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        if is_published:
            world.publish(claim)
        assert cancel(world, claim.run_id) == DONE
        check_cancelled(world, claim.run_id)
        job = world.job(name)
        assert (job.locked_by, job.run_id, job.next_run_time) == (None, None, world.noon + MINUTE)
        assert job.fence > claim.fence
        answer = world.store.start([world.request(claim)], "worker-1")[claim.run_id]
        assert isinstance(answer, RefusedStart) and (answer.state, answer.is_its_claim) == ("cancelled", 1)
        assert world.publish(claim) == world.dispatch(claim) == world.give_back(claim) == set()
        check_cancelled(world, claim.run_id)
        world.later(60)
        assert world.begin(world.claim_one()).scheduled_for == world.noon + MINUTE

    @pytest.mark.parametrize("fields", JOBS)
    def test_what_was_fired_and_forgotten_begins_no_more(self, world: World, fields: dict[str, Any]) -> None:
        world.add(**fields)
        claim = world.forgotten()
        assert cancel(world, claim.run_id) == DONE
        assert world.start(claim) is None
        check_cancelled(world, claim.run_id)

    # What runs

    @pytest.mark.parametrize("fields", JOBS)
    def test_the_next_heartbeat_brings_the_request(self, world: World, fields: dict[str, Any]) -> None:
        world.add(**fields)
        run = begun(world, fields)
        assert world.store.extend([(run, LEASE)]).asked == {}
        assert cancel(world, run.run_id) == ASKED
        extended = world.store.extend([(run, LEASE)])
        assert (extended.lost, extended.asked) == (set(), {run.run_id: Asked("ann", "wrong", world.near(world.now))})
        asked = world.run(run.run_id)
        assert (asked.state, asked.cancel_by) == ("running", "ann")

    @pytest.mark.parametrize("fields", JOBS)
    @pytest.mark.parametrize(
        "ending",
        [
            after_success(),
            Ending(RETRY, "failed", 5.0, 1, 0, "boom"),
            Ending("dlq", "retries exhausted", None, 1),
            released("worker stopped"),
            left_to_others(),
        ],
        ids=["success", "failure", "dead", "given back", "left"],
    )
    def test_from_then_on_it_ends_as_cancelled(self, world: World, fields: dict[str, Any], ending: Ending) -> None:
        name = world.add(**fields)
        run = begun(world, fields)
        cancel(world, run.run_id)
        assert world.finish(run, ending)
        check_cancelled(world, run.run_id)
        job = world.job(name)
        assert (job.locked_by, job.retry_at, job.next_run_time) == (None, None, world.noon + MINUTE)
        assert world.claim().claims == []

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_lease_that_ends_is_reclaimed_as_cancelled(self, world: World, fields: dict[str, Any]) -> None:
        world.add(schedule="every 3600s", **fields)
        run = begun(world, fields)
        cancel(world, run.run_id)
        world.later(LEASE + 1)
        assert world.reclaim(after_lost_lease(0, 5), world.ended_one()) == {run.run_id}
        check_cancelled(world, run.run_id)
        assert world.claim().claims == []

    def test_a_one_off_that_runs_ends_as_cancelled(self, world: World) -> None:
        run_id = submitted(world)
        run = world.running()
        assert cancel(world, run_id) == ASKED
        assert world.finish(run, world.failure(0.0))
        check_cancelled(world, run_id)
        assert world.claim().claims == []

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_later_retry_of_celerys_own_does_not_begin(self, world: World, fields: dict[str, Any]) -> None:
        world.add(**fields)
        claim = world.claim_one()
        if fields:
            world.dispatch(claim)
        else:
            world.publish(claim)
        world.begin(claim)
        cancel(world, claim.run_id)
        assert world.start(claim, celery_retries=1) is None

    # Asked again

    def test_the_first_request_stays(self, world: World) -> None:
        waiting, running = submitted(world, due_at=world.now + MINUTE), submitted(world)
        world.running()
        for run_id in (waiting, running):
            answer = cancel(world, run_id)
            first = world.run(run_id)
            world.later(1)
            assert cancel(world, run_id, "bob", "late") == answer
            assert world.run(run_id) == first

    def test_what_has_ended_says_so(self, world: World) -> None:
        run_id = submitted(world)
        world.finish(world.running())
        assert cancel(world, run_id) == Cancellation("success", is_done=False, is_asked=False)
        assert world.run(run_id).cancel_at is None

    def test_an_attempt_that_another_one_has_followed_is_over(self, world: World) -> None:
        name = world.add()
        failed = world.running()
        world.finish(failed, world.failure(0.0))
        second = world.running()
        assert cancel(world, failed.run_id) == Cancellation("retry", is_done=False, is_asked=False)
        assert world.finish(second)
        assert world.states(name) == ["retry", "success"]

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_run_is_cancelled_or_begins_and_is_asked_to_stop(self, world: World, fields: dict[str, Any]) -> None:
        world.add(**fields)
        claim = world.claim_one()
        world.publish(claim)
        request = world.request(claim)
        answer, started = both(
            world,
            lambda store: patiently(lambda: cancel(world, claim.run_id, store=store)),
            lambda store: patiently(lambda: world.ask(request, store=store)),
        )
        assert answer == (ASKED if started else DONE)
        for run in started.values():
            assert world.finish(run)
        check_cancelled(world, claim.run_id)

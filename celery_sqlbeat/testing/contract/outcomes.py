"""Outcomes: who may write them, and what they leave behind."""

import contextlib
from typing import Any

import pytest

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model.lifecycle import CLAIMED, Ending, after_lost_lease, after_success, released
from celery_sqlbeat.store.records import Recorded
from celery_sqlbeat.testing.contract.base import IDS, JOBS, Contract
from celery_sqlbeat.testing.world import HOUR, LEASE, MINUTE, OVERLAP, World, outcome, outcomes


class OutcomeContract(Contract):
    """Rules of `finish` for the run that a worker holds."""

    def test_a_run_gets_nowhere_by_a_way_that_no_run_may_go(self, world: World) -> None:
        name = world.add()
        run = world.running()
        with contextlib.suppress(StoreError):
            assert not world.finish(run, Ending(CLAIMED))
        assert world.states(name) == ["running"]
        assert world.finish(run)

    def test_an_outcome_is_recorded_once(self, world: World) -> None:
        name = world.add()
        run = world.running()
        assert world.finish(run)
        before = world.job(name)[:-1], world.runs(name)
        world.later(1)
        assert not world.finish(run, world.failure(5.0))
        assert not world.finish(run)
        assert (world.job(name)[:-1], world.runs(name)) == before

    @pytest.mark.parametrize("fields", JOBS)
    @pytest.mark.parametrize("field", IDS)
    def test_an_outcome_needs_run_claim_and_fence_each(self, world: World, field: str, fields: dict[str, Any]) -> None:
        name = world.add(**fields)
        run = world.running()
        before = world.job(name)[:-1], world.runs(name)
        for other in (run.fence - 1, run.fence + 1) if field == "fence" else (world.ids.random_id(),):
            wrong: dict[str, Any] = {field: other}
            assert not world.finish(run._replace(**wrong))
        assert (world.job(name)[:-1], world.runs(name)) == before
        assert world.finish(run)

    def test_an_outcome_under_the_fence_of_the_successor_changes_nothing(self, world: World) -> None:
        name = world.add()
        zombie = world.running()
        world.later(LEASE)
        world.sweep()
        successor = world.running()
        before = world.job(name)[:-1], world.runs(name)
        run_id, claim_id, fence = successor.run_id, successor.claim_id, successor.fence
        assert not world.finish(zombie)
        assert not world.finish(zombie._replace(fence=fence))
        assert not world.finish(zombie._replace(run_id=run_id, fence=fence))
        assert not world.finish(zombie._replace(claim_id=claim_id, fence=fence))
        assert not world.finish(zombie._replace(run_id=run_id, claim_id=claim_id))
        assert (world.job(name)[:-1], world.runs(name)) == before
        assert world.finish(successor)

    def test_a_lease_past_its_end_may_still_be_ended_until_somebody_takes_it(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.later(LEASE + 60)
        assert world.finish(run)
        assert world.states(name) == ["success"]

    def test_a_batch_of_outcomes_writes_those_that_are_not_lost(self, world: World) -> None:
        names = [world.add() for _ in range(4)]
        runs = world.ask(*(world.request(claim) for claim in world.claim().claims)).values()
        by_name = {run.job_name: run for run in runs}
        first, lost, good, failing = (by_name[name] for name in names)
        world.finish(first)
        forged = lost._replace(claim_id=world.ids.random_id())
        batch = [*outcomes([first, forged, good]), outcome(failing, world.failure(5.0))]
        assert world.store.finish(batch) == Recorded({good.run_id, failing.run_id}, set())
        assert [world.states(name)[0] for name in names] == ["success", "running", "success", "retry"]

    def test_no_outcomes_record_nothing(self, world: World) -> None:
        assert world.store.finish([]) == Recorded(set(), set())

    def test_success_frees_the_job_and_forgets_the_claim(self, world: World) -> None:
        name = world.add()
        run = world.running()
        at = world.later(1)
        world.finish(run)
        job = world.job(name)
        assert (job.locked_by, job.locked_at, job.lease_ends_at, job.claimed_at) == (None,) * 4
        assert (job.published_at, job.run_id, job.started_retry, job.retry_at) == (None,) * 4
        assert job.last_run_time == world.near(at)
        assert job.fence > run.fence

    def test_success_is_recorded_with_its_instants(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        instants = [world.noon]
        instants.append(world.later(0.1))
        world.publish(claim)
        instants.append(world.later(0.1))
        run = world.begin(claim)
        instants.append(world.later(0.1))
        assert world.finish(run, after_success("replaced"))
        (row,) = world.runs(name)
        assert (row.state, row.prior_state, row.reason) == ("success", "running", "replaced")
        instants_recorded = (row.claimed_at, row.published_at, row.started_at, row.finished_at)
        assert instants_recorded == tuple(map(world.near, instants))
        assert (row.claimed_by, row.started_by) == ("beat-1", "worker-1")

    def test_success_may_say_what_went_wrong_after_the_body(self, world: World) -> None:
        name = world.add()
        assert world.finish(world.running(), after_success("result not stored", "OSError: full"))
        (row,) = world.runs(name)
        assert (row.state, row.reason, row.error) == ("success", "result not stored", "OSError: full")

    def test_a_long_error_is_kept_by_its_beginning_and_a_long_traceback_by_its_end(self, world: World) -> None:
        name = world.add()
        run = world.running()
        error, traceback = "ValueError('no row')" + "x" * 5000, "x" * 20_000 + "the last line"
        assert world.finish(run, Ending("dlq", "long", None, 1, 0, error, traceback))
        row = world.runs(name)[0]
        assert row.error is not None and row.traceback is not None
        assert len(row.error) == 2000 and row.error.startswith("ValueError('no row')x")
        assert row.error.endswith("x ...")
        assert len(row.traceback) == 16_000 and row.traceback.startswith("... x")
        assert row.traceback.endswith("the last line")

    def test_an_error_that_is_no_text_is_stored_as_far_as_it_is(self, world: World) -> None:
        """The name of a file may hold any bytes; the outcome of the other runs must not wait."""
        name = world.add()
        assert world.finish(world.running(), Ending("dlq", "odd", None, 1, 0, "no file \udcff\0here", "Trace \udcff"))
        error = world.runs(name)[0].error
        assert error is not None and error.startswith("no file ") and error.endswith("here")

    @pytest.mark.parametrize("fields", JOBS)
    def test_an_outcome_of_an_earlier_try_ends_nothing_that_a_later_one_has_begun(
        self, world: World, fields: dict[str, Any]
    ) -> None:
        """A worker that was cut off writes late; Celery's retry of the run goes on elsewhere."""
        name = world.add(**fields)
        claim = world.claim_one()
        world.publish(claim)
        first = world.begin(claim)
        second = world.begin(claim, celery_retries=1, worker="worker-2")
        assert (first.fence, first.claim_id) == (second.fence, second.claim_id)
        assert not world.finish(first, after_lost_lease(0, 5))
        assert world.states(name) == ["running"]
        assert world.finish(second)
        assert world.states(name) == ["success"]

    def test_a_run_that_was_un_started_is_claimed_again_under_the_same_attempt(self, world: World) -> None:
        name = world.add()
        first = world.running()
        assert world.finish(first, released("shutdown"))
        assert world.states(name) == ["scheduled"]
        claim = world.claim_one()
        assert (claim.run_id, claim.slot.attempt) == (first.run_id, 1)
        assert claim.claim_id != first.claim_id and claim.fence > first.fence
        again = world.begin(claim)
        assert (again.failures, again.lost_leases) == (0, 0)
        world.finish(again)
        assert world.states(name) == ["success"]

    @pytest.mark.parametrize("hours", [-24, 24])
    @pytest.mark.parametrize(
        "ending",
        [after_success(), Ending("dlq", "retries exhausted"), Ending("cancelled")],
        ids=["success", "dlq", "cancelled"],
    )
    def test_an_operators_next_run_wins_over_the_outcome(self, world: World, hours: int, ending: Ending) -> None:
        name = world.add()
        run = world.running()
        changed = world.noon + hours * HOUR
        world.change_time(name, changed)
        assert world.finish(run, ending)
        assert world.job(name).next_run_time == changed

    def test_an_operators_next_run_wins_also_while_the_slot_waits_for_its_retry(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.finish(run, world.failure(1.0))
        changed = world.noon + 5 * HOUR
        world.change_time(name, changed)
        world.later(1)
        again = world.running()
        assert again.attempt == 2
        world.finish(again)
        assert world.job(name).next_run_time == changed

    def test_an_operators_next_run_wins_also_while_the_slot_waits_to_be_claimed_again(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        changed = world.noon - 5 * HOUR
        world.change_time(name, changed)
        world.give_back(claim)
        world.finish(world.running())
        assert world.job(name).next_run_time == changed

    def test_an_operators_change_does_not_finish_a_once_job(self, world: World) -> None:
        world.at(world.noon)
        name = world.add(schedule="once 2027-03-01T12:00:00Z")
        run = world.running()
        world.change_time(name, world.noon + MINUTE)
        world.finish(run)
        assert (world.job(name).enabled, world.job(name).next_run_time) == (1, world.noon + MINUTE)

    def test_a_job_paused_while_it_runs_ends_its_slot_and_stays_paused(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.change(name, enabled=False)
        assert world.finish(run)
        job = world.job(name)
        assert (job.enabled, job.next_run_time) == (0, world.near(world.noon + MINUTE))

    def test_an_overlapping_run_may_end_before_it_is_marked_dispatched(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        claim = world.claim_one()
        assert world.finish(world.begin(claim))
        assert world.states(name) == ["success"]
        job = world.job(name)
        assert (job.locked_by, job.next_run_time) == (None, world.near(world.noon + MINUTE))
        assert world.dispatch(claim) == set()

    @pytest.mark.parametrize(
        "ending", [Ending("retry", "failed", 1.0, 1), after_lost_lease(0, 5)], ids=["failed", "lost"]
    )
    def test_an_overlapping_run_may_fail_before_it_is_marked_dispatched(self, world: World, ending: Ending) -> None:
        """Its schedule goes on, and the retry is entered once."""
        name = world.add(policies=OVERLAP)
        claim = world.claim_one()
        assert world.finish(world.begin(claim), ending)
        assert world.dispatch(claim) == set()
        job = world.job(name)
        assert (job.locked_by, job.retry_at, job.next_run_time) == (None, None, world.near(world.noon + MINUTE))
        world.later(1)
        again = world.claim_one()
        assert again.slot.attempt == 2
        world.dispatch(again)
        assert world.claim().claims == []
        assert world.states(name) == ["retry", "dispatched"]

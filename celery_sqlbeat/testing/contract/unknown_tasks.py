"""Slots whose task nobody knows yet, and the check-ins that monitors open for slots."""

from typing import Any

import pytest

from celery_sqlbeat.model.lifecycle import UNKNOWN_TASK, Ending, released_unknown
from celery_sqlbeat.store.records import RunNote
from celery_sqlbeat.testing.contract.base import JOBS, Contract
from celery_sqlbeat.testing.world import MINUTE, World


class UnknownTaskContract(Contract):
    """Rules of slots that wait for a worker that knows their task, and of `note_runs`."""

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_slot_whose_task_nobody_knows_says_how_old_it_is(self, world: World, fields: dict[str, Any]) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        assert claim.slot.unknown_seconds is None
        world.later(0.5)
        world.give_back(claim, UNKNOWN_TASK, 1.0)
        world.later(1)
        again = world.claim_one()
        assert again.run_id == claim.run_id
        assert again.slot.unknown_seconds == pytest.approx(1.5, abs=0 if world.clock.is_settable else 10)
        world.give_back(again, "the broker is away")
        assert world.claim_one().slot.unknown_seconds is None
        assert [run.failures for run in world.runs(name)] == [0]

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_slot_that_waited_in_vain_is_skipped_and_its_job_goes_on(
        self, world: World, fields: dict[str, Any]
    ) -> None:
        name = world.add(**fields)
        claim = world.claim_one()
        assert world.release([claim], Ending("skipped", UNKNOWN_TASK)).done == {claim.run_id}
        (row,) = world.runs(name)
        assert (row.state, row.reason, row.failures) == ("skipped", UNKNOWN_TASK, 0)
        job = world.job(name)
        assert (job.locked_by, job.retry_at, job.next_run_time) == (None, None, world.near(world.noon + MINUTE))

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_worker_that_does_not_know_the_task_gives_its_slot_back(
        self, world: World, fields: dict[str, Any]
    ) -> None:
        """Also one that was fired and forgotten: it comes again from the outbox."""
        name = world.add(**fields)
        run = world.overlapping() if fields else world.running()
        assert world.finish(run, released_unknown(8.0))
        assert world.states(name) == ["scheduled"] and world.claim().claims == []
        world.later(8)
        again = world.claim_one()
        assert (again.run_id, again.slot.attempt, again.slot.failures) == (run.run_id, 1, 0)
        assert again.slot.unknown_seconds is not None

    def test_a_check_in_is_kept_with_its_run_by_who_holds_the_claim(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        stale = RunNote(claim.run_id, world.ids.random_id(), "{}")
        assert world.store.note_runs([stale]).done == set()
        assert world.run(claim.run_id).check_in is None
        noted = world.store.note_runs([RunNote(claim.run_id, claim.claim_id, '{"id": "one"}')])
        assert noted.done == {claim.run_id}
        assert world.run(claim.run_id).check_in == '{"id": "one"}'

"""The policy `replace`: a run makes room for the next slot of its job."""

import pytest

from celery_sqlbeat.model import PauseJob, ReplaceableRun
from celery_sqlbeat.model.lifecycle import CANCELLED, REPLACED_REASON, Ending
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.records import Guard, KeptRun, Release
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.contract.overlap import add_overlapping, run_for
from celery_sqlbeat.testing.world import SECOND, World


class ReplacingContract(Contract):
    """Rules of `expired`, `postpone` and `finish` for runs that are to make room."""

    def test_a_run_is_replaced_when_the_next_slot_comes(self, world: World) -> None:
        name = add_overlapping(world, "replace")
        run = world.running()
        assert replaceable(world) == []
        assert world.store.next_deadlines().ends_at() == world.noon + 2 * SECOND
        world.later(2)
        (runs,) = replaceable(world)
        assert (runs.run_id, runs.started, runs.job_name) == (run.run_id, 1, name)
        assert replace(world.store, runs) == {run.run_id}
        assert replaceable(world) == []
        assert world.extend(run, seconds=60) == {run.run_id}, "its lease went first"
        assert not world.finish(run), "who lost the lease writes nothing"
        claim = world.claim_one()
        assert (claim.slot.scheduled_for, claim.fence) > (world.noon, run.fence)
        assert world.history(name) == [(0, "cancelled", "replaced", 1), (2, "claimed", None, 1)]

    def test_two_beats_replace_a_run_once(self, world: World) -> None:
        add_overlapping(world, "replace")
        run = world.running()
        world.later(2)
        runs = replaceable(world)
        assert replace(world.store, *runs) == {run.run_id}
        assert replace(world.another_store(), *runs) == set()

    def test_a_run_that_ended_meanwhile_is_not_replaced(self, world: World) -> None:
        name = add_overlapping(world, "replace")
        run = world.running()
        world.later(2)
        runs = replaceable(world)
        assert world.finish(run)
        assert replace(world.store, *runs) == set()
        assert world.states(name) == ["success"]

    def test_what_waits_in_the_queue_is_not_replaced_but_considered_again_with_the_next_slot(
        self, world: World
    ) -> None:
        """Each slot would send one more message while all workers are down."""
        add_overlapping(world, "replace")
        claim = world.claim_one()
        world.publish(claim)
        world.later(3)
        (waiting,) = replaceable(world)
        is_replaced, later = world.planner.makes_room(waiting)
        assert not is_replaced and later == world.noon + 4 * SECOND
        world.store.postpone([KeptRun(waiting, later)], "beat-1")
        assert replaceable(world) == []
        world.begin(claim)
        world.later(1)
        (started,) = replaceable(world)
        assert world.planner.makes_room(started) == (True, None)

    def test_a_run_is_not_replaced_by_what_was_read_before_another_beat_postponed_it(self, world: World) -> None:
        """Both read the slot that has come: one while the run is queued, one after its start."""
        name = add_overlapping(world, "replace")
        claim = world.claim_one()
        world.publish(claim)
        world.later(3)
        (queued,) = replaceable(world)
        world.begin(claim)
        other = world.another_store()
        (started,) = other.expired(10).replaceable
        assert started.started == 1
        world.store.postpone([KeptRun(queued, world.noon + 4 * SECOND)], "beat-1")
        assert replace(other, started) == set(), "the slot that makes room is a later one now"
        assert world.states(name) == ["running"]
        world.later(1)
        assert replace(other, started) == {claim.run_id}

    def test_a_late_postponement_does_not_bring_an_earlier_slot_back(self, world: World) -> None:
        add_overlapping(world, "replace")
        world.publish(world.claim_one())
        world.later(3)
        (read,) = replaceable(world)
        world.later(2)
        world.another_store().postpone([KeptRun(read, world.noon + 6 * SECOND)], "beat-2")
        world.store.postpone([KeptRun(read, world.noon + 4 * SECOND)], "beat-1")
        assert replaceable(world) == []
        assert world.store.next_deadlines().replace_at == world.noon + 6 * SECOND

    def test_a_run_may_hold_its_job_until_it_ends(self, world: World) -> None:
        add_overlapping(world, "replace")
        world.running()
        world.later(2)
        (runs,) = replaceable(world)
        world.store.postpone([KeptRun(runs, None)], "beat-1")
        world.later(100)
        assert replaceable(world) == []
        assert world.store.next_deadlines().replace_at is None

    def test_a_job_that_was_paused_meanwhile_keeps_its_run(self, world: World) -> None:
        name = add_overlapping(world, "replace")
        world.running()
        world.later(2)
        runs = replaceable(world)
        assert world.another_store().write_jobs([PauseJob(name, "paused")]).done
        assert replace(world.store, *runs) == set()
        assert world.states(name) == ["running"]
        assert replaceable(world) == []
        assert world.store.next_deadlines().replace_at is None

    def test_a_job_that_is_no_longer_to_be_replaced_keeps_its_run(self, world: World) -> None:
        name = add_overlapping(world, "replace")
        world.running()
        world.change(name, policies=None)
        world.later(2)
        (runs,) = replaceable(world)
        assert world.planner.makes_room(runs) == (False, None)

    def test_a_retry_that_waits_makes_room_for_the_next_slot(self, world: World) -> None:
        name = add_overlapping(world, "replace", cadence="fixed_rate")
        run_for(world, 1.0, world.failure(4.0))
        world.later(4)
        claim = world.claim_one()
        assert (claim.slot.scheduled_for, claim.slot.attempt) == (world.noon + 4 * SECOND, 1)
        assert world.history(name) == [
            (0, "cancelled", "replaced", 1),
            (2, "skipped", "overlap", 1),
            (4, "claimed", None, 1),
        ]
        world.publish(claim)
        assert world.finish(world.begin(claim))
        assert world.job(name).retry_at is None

    @pytest.mark.parametrize("set_for", [3, 60])
    def test_a_retry_that_waits_makes_no_room_where_an_operator_has_set_the_next_slot(
        self, world: World, set_for: int
    ) -> None:
        name = add_overlapping(world, "replace", cadence="fixed_rate")
        run = world.running()
        world.later(1)
        world.change_time(name, world.noon + set_for * SECOND)
        assert world.finish(run, world.failure(4.0))
        world.later(4)
        claim = world.claim_one()
        assert (claim.slot.scheduled_for, claim.slot.attempt) == (world.noon, 2)
        world.publish(claim)
        assert world.finish(world.begin(claim))
        assert world.job(name).next_run_time == world.noon + set_for * SECOND


def replaceable(world: World) -> list[ReplaceableRun]:
    """Return the runs that hold their jobs although the next slot has come."""
    return world.store.expired(10).replaceable


def replace(store: Store, *runs: ReplaceableRun) -> set[str]:
    """Cancel runs for the next slot of their jobs; return the ids of those cancelled."""
    ending = Ending(CANCELLED, REPLACED_REASON)
    releases = [Release(run.job_id, run.run_id, run.claim_id, run.fence, ending) for run in runs]
    return store.finish(releases, Guard.REPLACEABLE).done

"""Extra slots and replays: attempts that wait in the outbox beside the schedule of their job."""

from collections.abc import Mapping
from typing import Any

import pytest

from celery_sqlbeat.model import NewRun
from celery_sqlbeat.model.lifecycle import DLQ, Ending
from celery_sqlbeat.store.purges import DeadLetters, Purged
from celery_sqlbeat.store.records import RunQuery
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import HOUR, MINUTE, World

DEAD = Ending(DLQ, "retries exhausted", None, 1, 0, "ValueError: no", "Traceback ...")


class ExtraSlotContract(Contract):
    """Rules of `enqueue`."""

    def test_an_extra_slot_runs_at_once_and_leaves_the_schedule_alone(self, world: World) -> None:
        name = world.add(next_run_time=world.noon + HOUR)
        world.add_slot(name)
        run = world.running()
        assert (run.kind, run.job_name, run.scheduled_for) == ("manual", name, world.near(world.noon))
        at = world.later(0.5)
        assert world.finish(run)
        job = world.job(name)
        assert (job.next_run_time, job.last_run_time) == (world.noon + HOUR, world.near(at))

    def test_an_extra_slot_waits_for_the_end_of_the_run(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.add_slot(name)
        assert world.claim().claims == []
        world.finish(run)
        assert world.claim_one().slot.kind == "manual"

    def test_an_extra_slot_of_a_job_that_is_gone_is_refused(self, world: World) -> None:
        assert not world.enqueue(world.ids.random_id())

    def test_a_batch_of_extra_slots_tells_which_were_added(self, world: World) -> None:
        name = world.add(next_run_time=world.noon + HOUR)
        good, bad = world.ids.run_ids(2)
        job_id = world.job(name).job_id
        assert world.store.enqueue([NewRun(good, job_id), NewRun(bad, world.ids.random_id())]) == {good}
        assert [run.run_id for run in world.runs(name)] == [good]
        assert world.store.enqueue([]) == set()

    def test_two_extra_slots_run_one_after_the_other(self, world: World) -> None:
        name = world.add(next_run_time=world.noon + HOUR)
        world.add_slot(name)
        world.later(0.1)
        world.add_slot(name)
        for _ in range(2):
            world.finish(world.running())
        assert world.states(name) == ["success", "success"]
        assert world.claim().claims == []

    def test_extra_slots_come_before_the_schedule(self, world: World) -> None:
        """A job that runs longer than its interval is due again whenever it is free."""
        name = world.add(schedule="every 1s")
        run = world.running()
        world.add_slot(name)
        world.later(1.5)
        world.finish(run)
        extra = world.running()
        assert extra.kind == "manual"
        world.finish(extra)
        assert world.running().kind == "schedule"

    def test_a_failed_extra_slot_is_tried_again_once_per_failure(self, world: World) -> None:
        name = world.add(next_run_time=world.noon + HOUR)
        world.add_slot(name)
        run = world.running()
        world.finish(run, world.failure(8.0))
        assert world.job(name).retry_at is None
        assert world.claim().claims == []
        world.later(8)
        second = world.running()
        assert (second.kind, second.scheduled_for) == ("manual", run.scheduled_for)
        assert (second.attempt, second.failures) == (2, 1)
        world.finish(second)
        world.later(1)
        assert world.claim().claims == []
        assert world.states(name) == ["retry", "success"]

    def test_an_extra_slot_does_not_disturb_a_slot_that_waits_for_its_retry(self, world: World) -> None:
        name = world.add()
        world.finish(world.running(), world.failure(1.0))
        retry_at = world.job(name).retry_at
        world.add_slot(name)
        assert world.finish(world.running())
        assert world.job(name).retry_at == retry_at
        world.later(1)
        assert world.running().attempt == 2
        assert sorted(world.states(name)) == ["retry", "running", "success"]

    # Dead letters

    def test_a_dead_letter_keeps_its_error(self, world: World) -> None:
        name = dead_letter(world)
        (letter,) = world.letters()
        assert (letter.job_name, letter.error, letter.traceback) == (name, "ValueError: no", "Traceback ...")
        assert world.run(letter.run_id) == letter

    def test_a_dead_letter_is_replayed_once_under_a_new_run_id(self, world: World) -> None:
        name = dead_letter(world)
        (letter,) = world.letters()
        (new_id,) = world.ids.run_ids(1)
        assert world.store.enqueue([NewRun(new_id, letter.job_id, letter)]) == {new_id}
        assert world.replay(letter) == set()
        claim = world.claim_one()
        assert (claim.run_id, claim.slot.scheduled_for, claim.slot.attempt) == (new_id, letter.scheduled_for, 2)
        world.publish(claim)
        world.finish(world.begin(claim))
        assert [(run.state, run.reason) for run in world.runs(name)] == [("dlq", "replayed"), ("success", None)]

    def test_a_replay_leaves_the_schedule_alone(self, world: World) -> None:
        name = dead_letter(world)
        following = world.job(name).next_run_time
        world.replay(*world.letters())
        world.finish(world.running())
        assert world.job(name).next_run_time == following

    def test_of_two_dead_letters_of_a_slot_only_the_newest_is_replayed(self, world: World) -> None:
        name = twice_dead(world)
        assert replayed(world) == [3]
        assert replayed(world) == [], "its attempt is open"
        world.finish(world.running(), DEAD)
        assert replayed(world) == [4]
        world.finish(world.running())
        assert [(run.attempt, run.state, run.reason) for run in world.runs(name)] == [
            (1, "dlq", "retries exhausted"),
            (2, "dlq", "replayed"),
            (3, "dlq", "replayed"),
            (4, "success", None),
        ]
        assert replayed(world) == [], "its slot has succeeded"

    def test_a_dead_letter_is_not_replayed_while_an_earlier_attempt_of_its_slot_goes_on(self, world: World) -> None:
        """Overlapping runs of one slot, whose job was moved back while the first of them ran."""
        name = world.add(policies='{"max_retries": 0, "overlap": "allow"}')
        slot = world.job(name).next_run_time
        first = world.overlapping()
        world.change_time(name, slot)
        assert world.finish(world.overlapping(), DEAD)
        assert replayed(world) == []
        assert world.finish(first, DEAD)
        assert replayed(world) == [3]

    def test_two_administrators_replay_a_slot_once(self, world: World) -> None:
        """Both have read the dead letters before either of them replays one."""
        twice_dead(world)
        letters = world.letters()
        assert len(world.replay(*letters)) == 1
        assert world.replay(*letters, store=world.another_store()) == set()

    def test_a_dead_letter_is_not_replayed_beside_a_slot_that_a_beat_has_claimed_again(self, world: World) -> None:
        name = twice_dead(world)
        world.change_time(name, world.letters()[0].scheduled_for)
        assert world.claim_one().slot.attempt == 3
        assert replayed(world) == []

    def test_dead_letters_are_listed_oldest_first_and_page_by_page(self, world: World) -> None:
        """The id of a run begins with its time."""
        names = {dead_letter(world) for _ in range(3)}
        first = world.store.runs(RunQuery(only_dead=True, page_size=2))
        rest = world.store.runs(RunQuery(only_dead=True, page_size=2, after=first[-1]))
        assert {run.job_name for run in (*first, *rest)} == names
        ids = [run.run_id for run in (*first, *rest)]
        assert ids == sorted(ids) and len(first) == 2
        assert world.store.counts().dead == 3

    def test_dead_letters_are_purged_only_by_their_ids(self, world: World) -> None:
        dead_letter(world)
        dead_letter(world)
        first, second = world.letters()
        assert world.store.purge(DeadLetters([first.run_id])) == Purged(1)
        assert world.letters() == [second]
        assert world.store.purge(DeadLetters([])) == Purged(0)

    def test_what_is_no_dead_letter_is_not_purged_as_one(self, world: World) -> None:
        name = world.add()
        world.finish(world.running())
        assert world.store.purge(DeadLetters([run.run_id for run in world.runs(name)])) == Purged(0)
        assert world.states(name) == ["success"]

    @pytest.mark.parametrize("fields", [{}, {"schedule": "every 1s"}], ids=["minute", "second"])
    def test_a_replay_of_another_namespace_is_refused(self, world: World, fields: Mapping[str, Any]) -> None:
        dead_letter(world, **fields)
        assert world.replay(*world.letters(), store=world.sibling()) == set()
        assert len(world.letters()) == 1


def dead_letter(world: World, **fields: Any) -> str:
    """Add a job whose first slot ends as a dead letter; return its name."""
    name = world.add(**fields)
    world.finish(world.running(), DEAD)
    world.change_time(name, world.now + MINUTE)
    return name


def replayed(world: World) -> list[int]:
    """Replay all dead letters at once; return the numbers of the attempts that followed."""
    made = world.replay(*world.letters())
    return sorted(run.attempt for run in world.store.runs(RunQuery(run_ids=made)))


def twice_dead(world: World) -> str:
    """Add one slot with two dead letters, as an operator gets it who moves a job back."""
    name = world.add(policies='{"max_retries": 0}')
    slot = world.job(name).next_run_time
    for _ in range(2):
        world.change_time(name, slot)
        world.finish(world.running(), DEAD)
    return name

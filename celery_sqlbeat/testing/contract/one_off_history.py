"""What administrators see of one-offs, and when they are forgotten: a one-off is no job."""

import pytest

from celery_sqlbeat.model import CancelRun, DeleteJob, PauseJob, SealJob
from celery_sqlbeat.store.purges import DeadLetters, OldRuns
from celery_sqlbeat.store.records import JobQuery, RunQuery
from celery_sqlbeat.testing.claims import claim_of
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.contract.one_offs import (
    DAY,
    DEAD,
    held_by_submitter,
    one_off,
    one_offs,
    submit,
    submitted,
)
from celery_sqlbeat.testing.world import HOUR, World


class OneOffHistoryContract(Contract):
    """Rules of what lists, counts and deletes one-offs."""

    def test_the_arguments_of_a_one_off_are_read_and_replaced_by_its_run_id(self, world: World) -> None:
        job = world.add()
        (answer,) = submit(world, one_off(world, args="[1]", due_at=world.now + HOUR))
        query = JobQuery(names=[answer.run_id, job], one_offs=True)
        (row,) = world.store.jobs(query).values()
        assert (row.job_name, row.args) == (answer.run_id, "[1]")
        assert world.write(SealJob(answer.run_id, version=row.version, args="[2]", kwargs=None)) == {answer.run_id}
        assert not world.write(SealJob(answer.run_id, version=row.version, args="[3]", kwargs=None))
        world.later(3600.0)
        claim = next(claim for claim in world.claim().claims if claim.run_id == answer.run_id)
        assert list(claim.args) == [2]

    # It is no job

    def test_a_one_off_is_no_job(self, world: World) -> None:
        name = world.add(next_run_time=world.now + HOUR)
        before = world.store.counts(DAY)
        waiting, queued, ended = held_by_submitter(world), held_by_submitter(world), held_by_submitter(world)
        answers = submit(world, one_off(world), waiting, queued, ended)
        world.publish(claim_of(queued, answers[2]))
        world.finish(world.begin(claim_of(ended, answers[3])))
        assert set(world.store.jobs(JobQuery())) == {name}
        assert set(world.store.jobs(JobQuery(of_tasks=["app.once", "app.task"]))) == {name}
        assert world.store.jobs(JobQuery(names=[queued.run_id])) == {}
        assert world.store.jobs(JobQuery(needing_repair_of="")) == {}
        after = world.store.counts(DAY)
        assert after._replace(now=before.now) == before

    @pytest.mark.parametrize("is_replayed", [False, True])
    def test_what_one_beat_may_not_fire_is_set_aside_until_another_may(self, world: World, is_replayed: bool) -> None:
        run_id = submitted(world)
        if is_replayed:
            world.finish(world.running(), DEAD)
            world.replay(*world.letters())
        (refused,) = world.claim(planner=world.planner_for(allowed_tasks=("app.other",))).quarantines
        assert refused.job_id == run_id
        assert world.claim().jobs_read == 0
        assert world.store.counts().quarantined == 0
        assert world.store.jobs(JobQuery(only_quarantined=True)) == {}
        (row,) = world.store.jobs(JobQuery(needing_repair_of="")).values()
        repairs, quarantines = world.planner.repairs([row])
        assert quarantines == []
        assert world.write(*repairs) == {run_id}
        assert world.store.jobs(JobQuery(needing_repair_of="")) == {}
        assert world.claim_one().run_id == run_id

    def test_the_history_has_one_offs_which_can_be_asked_for_alone(self, world: World) -> None:
        world.add()
        world.finish(world.running())
        first, second = sorted([submitted(world), submitted(world)])
        assert one_offs(world) == [second, first]
        (page,) = world.store.runs(RunQuery(one_offs=True, page_size=1))
        assert one_offs(world, after=page) == [first]
        assert len(world.store.runs(RunQuery())) == 3
        assert one_offs(world, state="success") in ([], [first])

    # What is forgotten

    def test_a_one_off_is_forgotten_with_its_run(self, world: World) -> None:
        wanted = one_off(world)
        submit(world, wanted)
        world.finish(world.running())
        waiting, retrying = submitted(world, due_at=world.now + HOUR), submitted(world)
        world.finish(world.running(), world.failure(3 * DAY))
        world.later(2 * DAY)
        assert world.store.purge(OldRuns(DAY)).rows == 1
        assert set(one_offs(world)) == {waiting, retrying}
        assert submit(world, wanted)[0].is_new
        assert world.run(wanted.run_id).state == "scheduled"

    def test_a_dead_letter_that_is_replayed_is_kept_until_its_end(self, world: World) -> None:
        run_id = submitted(world)
        world.finish(world.running(), DEAD)
        world.replay(*world.letters())
        world.later(2 * DAY)
        assert world.store.purge(OldRuns(DAY)).rows == 0
        claim = world.claim_one()
        assert claim.run_id == run_id
        assert world.finish(world.begin(claim))

    def test_a_one_off_is_forgotten_with_its_dead_letter(self, world: World) -> None:
        wanted = one_off(world)
        submit(world, wanted)
        world.finish(world.running(), DEAD)
        assert world.store.purge(DeadLetters([wanted.run_id])).rows == 1
        assert one_offs(world) == []
        assert submit(world, wanted)[0].is_new
        assert world.claim_one().slot.attempt == 1

    def test_no_verb_of_jobs_touches_a_one_off(self, world: World) -> None:
        run_id = submitted(world)
        world.running()
        for write in (PauseJob(run_id, "by hand"), DeleteJob(run_id), CancelRun(run_id, "by hand")):
            assert world.store.write_jobs([write]).done == set()
        assert world.run(run_id).state == "running"

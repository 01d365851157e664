"""Deletion: when a job goes, and what becomes of its runs; its fences never come back."""

from celery_sqlbeat.model import AddJob, DeleteIdleJob, DeleteJob
from celery_sqlbeat.store.purges import OldNodes
from celery_sqlbeat.store.records import JobQuery, RunQuery
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import OVERLAP, World

DAY = 86400.0
KEEP = 30 * DAY


class DeletionContract(Contract):
    """Rules of deleted jobs."""

    def test_an_idle_job_is_deleted_at_once_and_its_history_stays(self, world: World) -> None:
        name = world.add()
        world.finish(world.running())
        assert world.write(DeleteJob(name))
        assert not world.is_there(name)
        assert world.states(name) == ["success"]
        assert not world.write(DeleteJob(name))

    def test_a_deletion_may_need_the_version_that_was_read(self, world: World) -> None:
        name = world.add()
        assert not world.write(DeleteJob(name, version=2))
        assert world.is_there(name)
        assert world.write(DeleteJob(name, version=1))
        assert not world.is_there(name)

    def test_a_running_job_is_deleted_when_its_run_has_ended(self, world: World) -> None:
        name = world.add()
        run = world.running()
        assert world.write(DeleteJob(name))
        assert world.job(name).delete_requested == 1
        assert idle(world) == set()
        assert world.finish(run)
        assert idle(world) == {name}
        assert not world.is_there(name)
        assert world.states(name) == ["success"]

    def test_a_running_job_is_deleted_by_force_and_its_run_is_cancelled(self, world: World) -> None:
        name = world.add()
        run = world.running()
        assert world.write(DeleteJob(name, force=True))
        assert not world.is_there(name)
        assert world.states(name) == ["cancelled"]
        assert world.extend(run) == {run.run_id}
        assert not world.finish(run)

    def test_a_job_that_nobody_wants_to_delete_is_not_deleted_as_idle(self, world: World) -> None:
        name = world.add()
        job = world.job(name)
        assert world.write(DeleteIdleJob(name, job.job_id)) == set()
        assert world.is_there(name)

    def test_a_job_that_waits_for_its_deletion_is_not_claimed(self, world: World) -> None:
        name = world.add(schedule="every 1s")
        run = world.running()
        world.write(DeleteJob(name))
        world.later(1.5)
        world.finish(run)
        assert world.claim().claims == []

    def test_overlapping_runs_end_before_their_job_is_deleted(self, world: World) -> None:
        name = world.add(policies=OVERLAP, schedule="every 1s")
        runs = [world.overlapping()]
        world.later(1)
        runs.append(world.overlapping())
        world.write(DeleteJob(name))
        assert world.job(name).delete_requested == 1
        assert world.finish(runs[0])
        assert idle(world) == set()
        assert world.finish(runs[1], world.failure(60.0))
        assert idle(world) == {name}
        assert world.states(name) == ["success", "cancelled"], "nobody would take the retry up"

    def test_overlapping_runs_are_cancelled_where_their_job_is_deleted_by_force(self, world: World) -> None:
        name = world.add(policies=OVERLAP, schedule="every 1s")
        runs = [world.overlapping()]
        world.later(1)
        runs.append(world.overlapping())
        world.later(1)
        runs.append(world.begin(world.claim_one()))  # it holds the job, too, until its message is marked as sent
        world.write(DeleteJob(name, force=True))
        assert not world.is_there(name)
        assert world.states(name) == ["cancelled"] * 3
        assert world.extend(*runs) == {run.run_id for run in runs}
        assert not any(world.finish(run) for run in runs)

    def test_what_waits_for_a_deleted_job_is_cancelled(self, world: World) -> None:
        name = world.add()
        world.finish(world.running(), world.failure(60.0))
        world.add_slot(name)
        world.write(DeleteJob(name))
        assert world.states(name) == ["cancelled", "cancelled"]
        assert world.store.next_deadlines().outbox_at is None

    def test_a_deleted_job_gets_no_extra_slot(self, world: World) -> None:
        name = world.add()
        job_id = world.job(name).job_id
        world.write(DeleteJob(name))
        assert not world.enqueue(job_id)

    # Fences

    def test_a_job_that_is_deleted_and_defined_again_goes_on_with_its_fences(self, world: World) -> None:
        seen: list[int] = []
        for _ in range(3):
            world.add("nightly")
            for _ in range(2):
                world.change_time("nightly", world.now)
                run = world.running()
                world.finish(run)
                seen += [run.fence, world.job("nightly").fence]
            world.write(DeleteJob("nightly"))
        assert seen == sorted(set(seen)), seen

    def test_a_job_that_was_deleted_while_it_ran_goes_on_above_its_last_fence(self, world: World) -> None:
        world.add("nightly")
        run = world.running()
        world.write(DeleteJob("nightly", force=True))
        world.add("nightly")
        assert world.job("nightly").fence > run.fence
        assert world.extend(run) == {run.run_id}
        assert world.claim_one().fence > run.fence

    def test_other_names_and_namespaces_begin_as_ever(self, world: World) -> None:
        world.add("first")
        begin = world.job("first").fence
        world.finish(world.running())
        world.write(DeleteJob("first"))
        world.add("other")
        assert world.job("other").fence == begin
        sibling = world.sibling()
        sibling.write_jobs([AddJob(world.draft("first"))])
        assert [job.fence for job in sibling.jobs(JobQuery()).values()] == [begin]

    def test_a_name_that_was_deleted_long_ago_is_forgotten_and_its_fences_are_not(self, world: World) -> None:
        world.add("nightly")
        world.finish(world.running())
        last = world.job("nightly").fence
        world.write(DeleteJob("nightly"))
        for _ in range(3):
            world.store.purge(OldNodes(KEEP))
        world.later(KEEP + 60)
        for _ in range(3):
            world.store.purge(OldNodes(KEEP))
        world.add("nightly")
        assert world.job("nightly").fence >= last

    def test_the_history_of_a_job_defined_again_is_its_own(self, world: World) -> None:
        world.add("nightly")
        before = world.job("nightly").job_id
        world.finish(world.running())
        world.write(DeleteJob("nightly"))
        world.add("nightly")
        assert world.job("nightly").job_id != before
        assert world.runs("nightly") == []
        assert [run.state for run in world.store.runs(RunQuery(job_id=before))] == ["success"]


def idle(world: World) -> set[str]:
    """Do what a beat does about jobs to be deleted; return the names of those that have gone."""
    jobs = world.store.jobs(JobQuery(needing_repair_of="", page_size=100)).values()
    return world.write(*(DeleteIdleJob(job.job_name, job.job_id) for job in jobs if job.delete_requested))

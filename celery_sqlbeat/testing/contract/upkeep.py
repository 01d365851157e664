"""Upkeep: what beats do about jobs that cannot run as they stand."""

from celery_sqlbeat.model import DeleteJob, QuarantineJob, RepairJob
from celery_sqlbeat.store.records import JobQuery
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.contract.claims import add_from_code, code_job
from celery_sqlbeat.testing.world import HOUR, MINUTE, World


class UpkeepContract(Contract):
    """Rules of the jobs that need repair, of repairs and of quarantines."""

    def test_a_job_without_a_next_run_needs_one(self, world: World) -> None:
        name = world.add(next_run_time=None)
        assert world.store.next_deadlines().due_at is None
        world.add(next_run_time=world.noon + HOUR)
        assert needing(world) == [name]
        job = world.job(name)
        assert world.write(RepairJob(name, job.job_id, job.fence, job.version, world.noon + MINUTE, None)) == {name}
        assert world.job(name).next_run_time == world.noon + MINUTE
        assert needing(world) == []

    def test_a_disabled_job_needs_no_next_run(self, world: World) -> None:
        world.add(next_run_time=None, enabled=False)
        assert needing(world) == []

    def test_a_job_in_quarantine_is_read_again_and_ends_it_by_a_repair(self, world: World) -> None:
        name = world.add(args="nonsense")
        world.claim()
        assert needing(world) == [name]
        job = world.job(name)
        assert world.write(RepairJob(name, job.job_id, job.fence, job.version, job.next_run_time, None)) == {name}
        assert world.job(name).quarantine is None

    def test_a_job_can_be_set_aside_with_a_reason(self, world: World) -> None:
        name = world.add()
        job = world.job(name)
        assert world.write(QuarantineJob(name, job.job_id, job.fence, job.version, "Args = x: no")) == {name}
        assert world.job(name).quarantine == "Args = x: no"
        assert world.claim().jobs_read == 0

    def test_upkeep_leaves_a_job_alone_that_was_claimed_meanwhile(self, world: World) -> None:
        name = world.add()
        job = world.job(name)
        world.claim_one()
        before = world.job(name)
        repair = RepairJob(name, job.job_id, job.fence, job.version, world.noon + HOUR, None)
        assert world.write(repair) == set()
        assert world.write(QuarantineJob(name, job.job_id, job.fence, job.version, "x")) == set()
        assert world.job(name)[:-1] == before[:-1]

    def test_upkeep_leaves_a_job_alone_that_was_changed_meanwhile(self, world: World) -> None:
        """The reason to set it aside may be gone, and its next run another one."""
        name = world.add(args="nonsense")
        job = world.job(name)
        world.change(name, args=None, next_run_time=world.noon + HOUR)
        assert world.write(QuarantineJob(name, job.job_id, job.fence, job.version, "Args = nonsense: no")) == set()
        assert world.write(RepairJob(name, job.job_id, job.fence, job.version, world.noon, None)) == set()
        assert (world.job(name).quarantine, world.job(name).next_run_time) == (None, world.noon + HOUR)

    def test_upkeep_of_a_job_that_is_gone_writes_nothing(self, world: World) -> None:
        name = world.add()
        job = world.job(name)
        world.write(DeleteJob(name))
        assert world.write(RepairJob(name, job.job_id, job.fence, job.version, world.noon, None)) == set()
        assert world.write(QuarantineJob(name, job.job_id, job.fence, job.version, "x")) == set()

    def test_jobs_that_wait_for_their_deletion_are_found(self, world: World) -> None:
        name = world.add()
        run = world.running()
        assert needing(world) == []
        world.write(DeleteJob(name))
        world.finish(run)
        assert needing(world) == needing(world, "office") == [name]

    def test_jobs_are_brought_in_order_by_beats_of_their_own_app(self, world: World) -> None:
        add_from_code(world, "shop", code_job("minute"))
        world.change("minute", next_run_time=None)
        assert needing(world, "office") == []
        assert needing(world, "shop") == ["minute"]
        assert needing(world) == ["minute"]

    def test_jobs_that_need_repair_are_read_page_by_page_by_their_ids(self, world: World) -> None:
        names = {world.add(next_run_time=None) for _ in range(5)}
        first = world.store.jobs(JobQuery(needing_repair_of="", page_size=3))
        last = [*first.values()][-1].job_id
        rest = world.store.jobs(JobQuery(needing_repair_of="", page_size=3, after_id=last))
        assert len(first) == 3 and len(rest) == 2
        assert {*first, *rest} == names
        ids = [job.job_id for job in (*first.values(), *rest.values())]
        assert ids == sorted(ids)


def needing(world: World, owner: str = "") -> list[str]:
    """Return the names of the jobs that need repair by a beat of this app."""
    return list(world.store.jobs(JobQuery(needing_repair_of=owner, page_size=100)))

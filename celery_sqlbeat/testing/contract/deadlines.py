"""When beats are to wake, and what they notice of each other."""

from datetime import datetime, timedelta

from celery_sqlbeat.model import AddJob, Claimable, DeleteJob, Node, PauseJob, ResumeJob, UpdateJob
from celery_sqlbeat.model.lifecycle import Ending, after_lost_lease, released
from celery_sqlbeat.store.records import ALL_JOBS, NextDeadlines
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.contract.claims import add_from_code, code_job
from celery_sqlbeat.testing.world import DISPATCH, HOUR, LEASE, MINUTE, OVERLAP, SECOND, World

ONCE = "once 2027-03-01T12:00:00Z"


class DeadlineContract(Contract):
    """Rules of `next_deadlines`, `pulse` and the change counter."""

    def test_with_nothing_to_do_there_is_no_deadline(self, world: World) -> None:
        deadlines = world.store.next_deadlines()
        assert (earliest(deadlines), deadlines.has_runs()) == (None, False)
        assert deadlines.now == world.near(world.now)

    def test_a_pulse_is_the_clock_and_the_counter(self, world: World) -> None:
        pulse = world.store.pulse()
        assert pulse.now == world.near(world.now)
        assert pulse.changes == world.store.next_deadlines().changes

    def test_the_next_due_job_is_the_deadline(self, world: World) -> None:
        world.add(next_run_time=world.noon + 50 * SECOND)
        world.add(next_run_time=world.noon + 30 * SECOND)
        world.add(next_run_time=world.noon + 10 * SECOND, enabled=False)
        add_from_code(world, "", code_job("lazy", code_key="elsewhere"), at=world.noon + 10 * SECOND)
        world.sibling().write_jobs([AddJob(world.draft("theirs"))])
        deadlines = world.store.next_deadlines()
        assert earliest(deadlines) == deadlines.due_at == world.noon + 30 * SECOND
        with_code = world.store.next_deadlines(Claimable(code_keys=["elsewhere"]))
        assert earliest(with_code) == world.noon + 10 * SECOND

    def test_a_job_in_quarantine_is_no_deadline(self, world: World) -> None:
        world.add(args="nonsense")
        world.claim()
        assert world.store.next_deadlines().due_at is None

    def test_a_beat_can_ask_for_what_is_due_later(self, world: World) -> None:
        world.add(next_run_time=world.noon)
        world.add(next_run_time=world.noon + 50 * SECOND)
        add_from_code(world, "", code_job("lazy", code_key="elsewhere"), at=world.noon + 30 * SECOND)
        world.add(next_run_time=world.noon + 20 * SECOND, enabled=False)

        def after(instant: datetime, claimable: Claimable = ALL_JOBS) -> datetime | None:
            return world.store.next_deadlines(claimable, after=instant).starts_at()

        assert after(world.noon) == world.noon + 50 * SECOND
        assert after(world.noon, Claimable(code_keys=["elsewhere"])) == world.noon + 30 * SECOND
        assert after(world.noon + 50 * SECOND) is None

    def test_a_retry_is_a_deadline(self, world: World) -> None:
        world.add()
        world.finish(world.running(), world.failure(7.0))
        assert earliest(world.store.next_deadlines()) == world.near(world.noon + 7 * SECOND)

    def test_a_claim_that_may_not_get_published_is_a_deadline(self, world: World) -> None:
        world.at(world.noon)
        world.add(schedule=ONCE)
        world.claim_one()
        deadlines = world.store.next_deadlines()
        assert earliest(deadlines) == deadlines.lease_ends_at == world.noon + timedelta(seconds=DISPATCH)
        assert (deadlines.planned_at, deadlines.locked, deadlines.has_runs()) == (None, 1, True)

    def test_a_queued_slot_and_a_lease_are_deadlines(self, world: World) -> None:
        world.at(world.noon)
        world.add(schedule=ONCE)
        claim = world.claim_one()
        world.store.mark_published([(claim, 40)])
        assert earliest(world.store.next_deadlines()) == world.noon + 40 * SECOND
        world.later(10)
        world.begin(claim)
        assert earliest(world.store.next_deadlines()) == world.noon + timedelta(seconds=10 + LEASE)

    def test_the_planned_slot_of_a_running_job_is_a_deadline_until_it_has_come(self, world: World) -> None:
        world.add()
        world.running()
        deadlines = world.store.next_deadlines()
        assert earliest(deadlines) == deadlines.planned_at == world.near(world.noon + MINUTE)
        world.later(61)
        assert earliest(world.store.next_deadlines()) == world.noon + timedelta(seconds=LEASE)

    def test_the_lease_of_an_overlapping_run_is_a_deadline(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        world.overlapping()
        world.change(name, enabled=False)
        deadlines = world.store.next_deadlines()
        assert earliest(deadlines) == deadlines.held_ends_at == world.near(world.noon + timedelta(seconds=LEASE))
        assert (deadlines.locked, deadlines.has_runs()) == (0, True)

    def test_the_outbox_is_a_deadline_where_the_job_is_free_and_enabled(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.add_slot(name)
        assert world.store.next_deadlines().outbox_at is None
        world.finish(run)
        assert world.store.next_deadlines().outbox_at == world.near(world.noon)
        world.change(name, enabled=False)
        assert earliest(world.store.next_deadlines()) is None

    def test_a_job_of_another_app_is_no_deadline(self, world: World) -> None:
        add_from_code(world, "office", code_job("theirs"), at=world.noon + MINUTE)
        world.enqueue(world.job("theirs").job_id)
        ours, all_jobs = world.store.next_deadlines(Claimable("shop")), world.store.next_deadlines()
        assert (ours.due_at, ours.outbox_at) == (None, None)
        assert all_jobs.due_at == world.noon + MINUTE and all_jobs.outbox_at == world.near(world.noon)

    def test_the_earliest_of_all_kinds_counts(self, world: World) -> None:
        world.at(world.noon)
        for _ in range(2):
            world.add(schedule=ONCE, policies=OVERLAP)
        claims = world.claim().claims
        world.dispatch(*claims)
        world.ask(*(world.request(claim) for claim in claims))  # two leases of runs, at 120 s
        world.add(schedule="every 100s")
        world.running()  # planned at 100 s
        world.add(schedule=ONCE)
        world.store.mark_published([(world.claim_one(), 80)])  # queued until 80 s
        world.add()
        world.finish(world.running(), world.failure(50.0))
        world.add(next_run_time=world.noon + 30 * SECOND)
        extra = world.add(next_run_time=world.noon + HOUR)
        deadlines = world.store.next_deadlines()
        assert deadlines.held_ends_at == world.noon + 120 * SECOND
        assert deadlines.planned_at == world.noon + 100 * SECOND
        assert deadlines.lease_ends_at == world.noon + 80 * SECOND
        assert deadlines.due_at == earliest(deadlines) == world.noon + 30 * SECOND
        world.add_slot(extra)
        assert earliest(world.store.next_deadlines()) == world.noon

    # What is noticed

    def test_every_change_of_a_job_is_noticed(self, world: World) -> None:
        seen = [world.changes()]

        def is_noticed() -> bool:
            seen.append(world.changes())
            return seen[-1] > seen[-2]

        world.write(AddJob(world.draft("a")))
        assert is_noticed()
        world.write(UpdateJob(world.draft("a"), version=1, reschedule=False))
        assert is_noticed()
        world.write(PauseJob("a", "tired"))
        assert is_noticed()
        world.write(ResumeJob("a", version=3, next_run_time=world.noon))
        assert is_noticed()
        world.add_slot("a")
        assert is_noticed()
        world.write(DeleteJob("a"))
        assert is_noticed()
        assert not is_noticed()

    def test_changes_in_another_namespace_are_not_noticed(self, world: World) -> None:
        before = world.changes()
        assert world.sibling().write_jobs([AddJob(world.draft("a"))]).done
        assert world.changes() == before

    def test_a_beat_that_stops_is_noticed(self, world: World) -> None:
        node = Node("beat@host/1", "beat", "host", 1, "1.0")
        world.store.heartbeat(node)
        before = world.changes()
        world.store.heartbeat(node)
        assert world.changes() == before
        world.store.heartbeat(node._replace(is_stopped=True))
        assert world.changes() > before

    def test_a_run_that_ends_as_planned_is_not_announced(self, world: World) -> None:
        world.at(world.noon)
        world.add(schedule="cron * * * * *")
        run = world.running()
        before = world.changes()
        world.later(10)
        world.finish(run)
        assert world.changes() == before

    def test_a_run_longer_than_its_interval_leaves_a_due_job_and_announces_it(self, world: World) -> None:
        world.add(schedule="every 1s")
        run = world.running()
        before = world.changes()
        world.later(1.5)
        world.finish(run)
        assert world.changes() > before
        assert world.store.next_deadlines().due_at is not None

    def test_a_retry_is_announced(self, world: World) -> None:
        world.add()
        run = world.running()
        before = world.changes()
        world.finish(run, world.failure(5.0))
        assert world.changes() > before

    def test_the_end_of_a_fixed_delay_is_announced_since_nobody_could_plan_it(self, world: World) -> None:
        world.add(policies='{"cadence": "fixed_delay"}')
        run = world.running()
        before = world.changes()
        world.finish(run)
        assert world.changes() > before

    def test_a_claim_given_back_is_announced(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        before = world.changes()
        world.give_back(claim)
        assert world.changes() > before

    def test_a_run_that_was_not_begun_is_announced(self, world: World) -> None:
        world.add()
        run = world.running()
        before = world.changes()
        world.finish(run, released("the worker stops"))
        assert world.changes() > before

    def test_a_run_whose_next_slot_was_moved_meanwhile_is_announced(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.change_time(name, world.now + 10 * SECOND)
        before = world.changes()
        world.finish(run)
        assert world.changes() > before

    def test_the_end_of_a_run_that_a_deletion_waits_for_is_announced(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.write(DeleteJob(name))
        before = world.changes()
        world.finish(run)
        assert world.changes() > before

    def test_the_end_of_the_last_overlapping_run_of_a_job_that_goes_is_announced(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        run = world.overlapping()
        world.write(DeleteJob(name))
        before = world.changes()
        assert world.finish(run)
        assert world.changes() > before

    def test_a_lease_that_is_taken_over_announces_what_a_deletion_waits_for(self, world: World) -> None:
        name = world.add()
        world.running()
        world.write(DeleteJob(name))
        before = world.changes()
        world.later(LEASE)
        assert world.reclaim(Ending("dlq", "lease lost"), world.ended_one())
        assert world.changes() > before

    def test_a_lost_lease_is_announced(self, world: World) -> None:
        world.add()
        world.running()
        before = world.changes()
        world.later(LEASE)
        assert world.reclaim(after_lost_lease(0, 5), world.ended_one())
        assert world.changes() > before


def earliest(deadlines: NextDeadlines) -> datetime | None:
    """Return the first of the instants at which a beat has something to do."""
    instants = (deadlines.starts_at(), deadlines.ends_at(), deadlines.planned_at)
    return min((at for at in instants if at is not None), default=None)

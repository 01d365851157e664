"""Heartbeats: a lease lives as long as its holder says, unless it is taken over."""

from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import Claim, StartRequest, Unbegun
from celery_sqlbeat.model.lifecycle import left_to_strategy, released
from celery_sqlbeat.store.records import Extended
from celery_sqlbeat.testing.contract.base import IDS, JOBS, Contract
from celery_sqlbeat.testing.world import LEASE, OVERLAP, World

LENGTH = timedelta(seconds=LEASE)


class HeartbeatContract(Contract):
    """Rules of `extend`, and of `postpone` for messages that wait in a worker."""

    def test_a_heartbeat_moves_the_lease_and_not_the_claim(self, world: World) -> None:
        name = world.add()
        run = world.running()
        before = world.job(name)
        at = world.later(1)
        assert world.extend(run) == set()
        job = world.job(name)
        assert (job.locked_at, job.lease_ends_at) == (world.near(at), world.near(at + LENGTH))
        assert job.lease_ends_at > before.lease_ends_at
        assert (job.claimed_at, job.next_run_time, job.fence) == (
            before.claimed_at,
            before.next_run_time,
            before.fence,
        )

    def test_a_heartbeat_extends_only_its_own_lease(self, world: World) -> None:
        world.add()
        mine = world.running()
        other = world.add()
        world.running()
        world.later(1)
        before = world.job(other)
        assert world.extend(mine) == set()
        assert world.job(other)[:-1] == before[:-1]

    def test_one_heartbeat_extends_each_lease_by_its_own_length(self, world: World) -> None:
        long, short = world.add(lock_timeout_minutes=10), world.add(lock_timeout_minutes=1)
        runs = world.ask(*(world.request(claim) for claim in world.claim().claims))
        at = world.later(1)
        held = [(run, run.lease_seconds) for run in runs.values()]
        assert world.store.extend(held) == Extended(set(), set())
        assert world.job(long).lease_ends_at == world.near(at + timedelta(minutes=10))
        assert world.job(short).lease_ends_at == world.near(at + timedelta(minutes=1))

    def test_a_heartbeat_returns_the_lost_ones_and_extends_the_rest(self, world: World) -> None:
        names = [world.add() for _ in range(3)]
        started = world.ask(*(world.request(claim) for claim in world.claim().claims)).values()
        runs = sorted(started, key=lambda run: names.index(run.job_name))
        world.finish(runs[1])
        world.add(policies=OVERLAP)
        gone = world.overlapping()
        world.add(policies=OVERLAP)
        kept = world.overlapping()
        world.finish(gone)
        at = world.later(1)
        assert world.extend(*runs, gone, kept) == {runs[1].run_id, gone.run_id}
        assert world.job(names[0]).lease_ends_at == world.near(at + LENGTH)
        assert world.job(names[1]).lease_ends_at is None

    def test_no_leases_are_no_losses(self, world: World) -> None:
        assert world.store.extend([]) == Extended(set(), set())

    @pytest.mark.parametrize("field", IDS)
    def test_a_heartbeat_needs_run_claim_and_fence_each(self, world: World, field: str) -> None:
        name = world.add()
        leased = world.running()
        world.add(policies=OVERLAP)
        before = world.job(name).lease_ends_at
        for run in (leased, world.overlapping()):
            wrong: dict[str, Any] = {field: run.fence - 1 if field == "fence" else world.ids.random_id()}
            forged = run._replace(**wrong)
            assert world.extend(forged, seconds=3600) == {forged.run_id}
        assert world.job(name).lease_ends_at == before

    def test_a_lease_past_its_end_is_still_its_holders_until_somebody_takes_it(self, world: World) -> None:
        """After an outage living workers get the chance to extend before anyone reclaims."""
        name = world.add()
        run = world.running()
        world.later(LEASE + 60)
        assert world.extend(run) == set()
        assert world.leases() == []
        assert world.job(name).lease_ends_at == world.now + LENGTH

    def test_a_heartbeat_never_resurrects_a_run_that_ended(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.finish(run)
        before = world.job(name)
        assert world.extend(run) == {run.run_id}
        assert world.job(name)[:-1] == before[:-1]

    def test_a_heartbeat_never_resurrects_a_lease_that_was_taken(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.later(LEASE)
        world.sweep()
        assert world.extend(run) == {run.run_id}
        assert world.job(name).locked_by is None

    def test_a_heartbeat_does_not_touch_the_lease_of_the_successor(self, world: World) -> None:
        name = world.add()
        zombie = world.running()
        world.later(LEASE)
        world.sweep()
        successor = world.running()
        assert successor.run_id != zombie.run_id
        before = world.job(name)
        world.later(10)
        assert world.extend(zombie, seconds=3600) == {zombie.run_id}
        assert world.job(name)[:-1] == before[:-1]

    def test_a_heartbeat_of_the_attempt_before_it_was_un_started_is_lost(self, world: World) -> None:
        """Run and attempt are the same again; claim and fence tell the two holders apart."""
        world.add()
        zombie = world.running()
        world.finish(zombie, released("shutdown"))
        run = world.running()
        assert run.run_id == zombie.run_id
        assert world.extend(zombie) == {zombie.run_id}
        assert world.extend(run) == set()

    def test_overlapping_runs_have_leases_of_their_own(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        run = world.overlapping()
        before = world.job(name)
        at = world.later(1)
        assert world.extend(run, seconds=300) == set()
        assert world.store.next_deadlines().held_ends_at == world.near(at + timedelta(seconds=300))
        assert world.job(name)[:-1] == before[:-1]

    def test_an_overlapping_run_that_was_taken_for_lost_is_lost(self, world: World) -> None:
        world.add(policies=OVERLAP)
        run = world.overlapping()
        world.later(LEASE)
        world.sweep()
        assert world.extend(run) == {run.run_id}

    def test_one_heartbeat_extends_more_leases_than_any_worker_holds(self, world: World) -> None:
        world.add()
        run = world.running()
        others = [run._replace(run_id=world.ids.random_id(), job_id=world.ids.random_id()) for _ in range(1500)]
        assert world.extend(run, *others) == {one.run_id for one in others}

    def test_the_deadline_of_a_message_that_waits_in_a_worker_moves_on_and_never_back(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        world.store.mark_published([(claim, 2 * LEASE)])
        assert world.store.postpone([unbegun(claim)], "worker-1") == {claim.run_id}
        assert world.job(name).lease_ends_at == world.near(world.noon + 2 * LENGTH)
        world.later(1.5 * LEASE)
        assert world.store.postpone([unbegun(claim)], "worker-1") == {claim.run_id}
        assert world.job(name).lease_ends_at == world.now + LENGTH
        world.later(0.75 * LEASE)
        assert world.leases() == []
        assert world.start(claim) is not None

    def test_a_message_that_waits_in_a_worker_counts_as_published_before_its_beat_has_said_so(
        self, world: World
    ) -> None:
        name = world.add()
        claim = world.claim_one()
        at = world.later(1)
        assert world.store.postpone([unbegun(claim)], "worker-1") == {claim.run_id}
        assert world.job(name).published_at == world.near(at)
        assert world.publish(claim) == {claim.run_id}

    def test_nothing_is_postponed_that_has_begun_or_ended_or_belongs_to_another_claim(self, world: World) -> None:
        world.add()
        run = world.running()
        waiting = Unbegun(run.run_id, run.claim_id, run.fence, 0)
        retry = waiting._replace(celery_retries=1)
        store = world.store
        assert store.postpone([waiting], "worker-1") == set()
        assert store.postpone([retry], "worker-1") == {run.run_id}, "its retry waits here"
        assert store.postpone([retry._replace(fence=run.fence + 1)], "worker-1") == set()
        assert world.sibling().postpone([retry], "worker-2") == set()
        world.finish(run)
        assert store.postpone([retry], "worker-1") == set()
        assert store.postpone([], "worker-1") == set()

    def test_a_dispatched_slot_has_no_deadline_to_postpone(self, world: World) -> None:
        world.add()
        assert world.store.postpone([unbegun(world.forgotten())], "worker-1") == set()

    @pytest.mark.parametrize("fields", JOBS)
    def test_a_run_that_was_let_go_by_its_worker_is_dispatched_and_begins_no_more(
        self, world: World, fields: dict[str, Any]
    ) -> None:
        name = world.add(**fields)
        run = world.overlapping() if fields else world.running()
        assert world.finish(run, left_to_strategy())
        assert world.states(name) == ["dispatched"]
        job = world.job(name)
        assert (job.locked_by, job.next_run_time) == (None, world.near(world.noon + timedelta(seconds=60)))
        assert world.ask(StartRequest(run.run_id, run.claim_id, run.fence, world.ids.random_id(), 0)) == {}


def unbegun(claim: Claim, celery_retries: int = 0) -> Unbegun:
    """Return the message of a claim that waits in a worker."""
    return Unbegun(claim.run_id, claim.claim_id, claim.fence, celery_retries)

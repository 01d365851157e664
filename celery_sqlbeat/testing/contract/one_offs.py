"""One-offs: what somebody submits without a schedule runs once, under one id for its whole life."""

from typing import Any

import pytest

from celery_sqlbeat.model.lifecycle import DLQ, Ending, after_lost_lease
from celery_sqlbeat.model.one_offs import ONE_OFF, IdempotencyKey, OneOff, Submitted
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.records import RunQuery
from celery_sqlbeat.testing.claims import claim_of
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import DISPATCH, HOUR, LEASE, SECOND, World

DAY = 86400.0  # seconds
DEAD = Ending(DLQ, "retries exhausted", None, 1, 0, "boom")


def one_off(world: World, **fields: Any) -> OneOff:
    """Return a one-off that is due now, unless the fields say otherwise."""
    return OneOff(world.ids.run_ids(1)[0], "app.once", "[4711]", None, None, None)._replace(**fields)


def held_by_submitter(world: World, **fields: Any) -> OneOff:
    """Return a one-off that its submitter publishes itself."""
    (claim_id,) = world.ids.claim_ids(1)
    return one_off(world, claim_id=claim_id, lease_seconds=LEASE, max_retries=3, **fields)


def submit(world: World, *one_offs: OneOff, store: Store | None = None) -> list[Submitted]:
    """Submit one-offs; return the answers in their order."""
    answers = (store or world.store).submit(one_offs, "submitter", DISPATCH)
    return [answers[wanted.run_id] for wanted in one_offs]


def submitted(world: World, **fields: Any) -> str:
    """Submit a one-off; return its id."""
    wanted = one_off(world, **fields)
    assert submit(world, wanted)[0].is_new
    return wanted.run_id


def key(text: str = "order-4711", digest: str = "d1", seconds: float = 60.0) -> IdempotencyKey:
    """Return a key that stands for its run for a minute."""
    return IdempotencyKey(text, digest, seconds)


def one_offs(world: World, **query: Any) -> list[str]:
    """Return the ids of the one-offs, newest first."""
    return [run.run_id for run in world.store.runs(RunQuery(one_offs=True, **query))]


class OneOffContract(Contract):
    """Rules of `submit`, and of what becomes of a one-off."""

    def test_a_one_off_runs_once_under_its_own_id(self, world: World) -> None:
        options, policies = '{"queue": "orders"}', '{"max_retries": 7}'
        run_id = submitted(world, kwargs='{"a": 1}', options=options, policies=policies)
        waiting = world.run(run_id)
        assert (waiting.state, waiting.kind, waiting.attempt) == ("scheduled", ONE_OFF, 1)
        assert waiting.task_name == "app.once"
        claim = world.claim_one()
        assert (claim.run_id, claim.job_id, claim.slot.kind, claim.slot.attempt) == (run_id, run_id, ONE_OFF, 1)
        assert (claim.task_name, list(claim.args), dict(claim.kwargs)) == ("app.once", [4711], {"a": 1})
        assert (claim.options, claim.max_retries, claim.exclusive) == ({"queue": "orders"}, 7, True)
        assert (claim.code_key, claim.replace_at, claim.max_parallel) == (None, None, None)
        assert world.publish(claim) == {run_id}
        assert world.finish(world.begin(claim))
        assert world.run(run_id).state == "success"
        world.later(DAY)
        assert world.claim().claims == []
        assert world.store.next_deadlines().starts_at() is None

    def test_one_that_lies_ahead_is_due_at_its_instant(self, world: World) -> None:
        at = world.now + HOUR
        run_id = submitted(world, due_at=at)
        assert world.claim().claims == []
        assert world.store.next_deadlines().due_at == at
        world.later(3601)
        claim = world.claim_one()
        assert (claim.run_id, claim.slot.scheduled_for) == (run_id, at)

    def test_an_instant_that_has_passed_is_now(self, world: World) -> None:
        (answer,) = submit(world, one_off(world, due_at=world.now - HOUR))
        assert answer.due_at == world.near(world.now)
        assert world.claim_one().slot.scheduled_for == answer.due_at

    def test_a_later_attempt_takes_the_same_run_up_again(self, world: World) -> None:
        run_id = submitted(world)
        first = world.running()
        assert world.finish(first, world.failure(5.0, "boom"))
        assert world.run(run_id).state == "retry"
        assert world.store.next_deadlines().due_at == world.near(world.now + 5 * SECOND)
        world.later(6)
        claim = world.claim_one()
        assert (claim.run_id, claim.slot.attempt, claim.slot.failures) == (run_id, 2, 1)
        assert claim.fence > first.fence
        assert (world.run(run_id).error, world.run(run_id).finished_at) == (None, None)
        again = world.begin(claim)
        assert (again.attempt, again.failures) == (2, 1)
        assert not world.finish(first)
        assert world.extend(first) == {run_id}
        assert world.finish(again)
        run = world.run(run_id)
        assert (run.state, run.attempt, run.failures) == ("success", 2, 1)
        assert one_offs(world) == [run_id]
        assert world.store.runs(RunQuery(job_id=run_id)) == [run]
        assert world.store.unended_results(10, DAY) == []

    def test_a_lost_lease_is_reclaimed_and_the_same_run_is_taken_up_again(self, world: World) -> None:
        run_id = submitted(world)
        world.running()
        world.later(LEASE + 1)
        lease = world.ended_one()
        assert (lease.run_id, lease.kind, lease.task_name) == (run_id, ONE_OFF, "app.once")
        assert world.reclaim(after_lost_lease(0, 5), lease) == {run_id}
        claim = world.claim_one()
        assert (claim.run_id, claim.slot.attempt, claim.slot.lost_leases) == (run_id, 2, 1)

    def test_a_dead_letter_of_a_one_off_is_replayed_under_its_id(self, world: World) -> None:
        run_id = submitted(world)
        assert world.finish(world.running(), DEAD)
        (letter,) = world.letters()
        assert (letter.run_id, letter.task_name) == (run_id, "app.once")
        changes = world.changes()
        assert world.replay(letter) == {run_id}
        assert world.changes() > changes
        assert world.replay(letter) == set()
        waiting = world.run(run_id)
        assert (waiting.state, waiting.attempt, waiting.failures, waiting.error) == ("scheduled", 2, 0, None)
        claim = world.claim_one()
        assert (claim.run_id, claim.slot.kind, claim.slot.attempt) == (run_id, ONE_OFF, 2)
        assert world.finish(world.begin(claim), world.failure(0.0))
        claim = world.claim_one()
        assert (claim.run_id, claim.slot.attempt, claim.slot.failures) == (run_id, 3, 1)
        assert world.finish(world.begin(claim))
        assert (world.run(run_id).state, one_offs(world)) == ("success", [run_id])
        assert world.claim().claims == []
        assert world.letters() == []
        assert world.store.unended_results(10, DAY) == []

    def test_what_was_fired_and_forgotten_may_begin_late(self, world: World) -> None:
        run_id = submitted(world)
        run = world.overlapping()
        assert run.run_id == run_id
        assert world.finish(run)
        assert world.run(run_id).state == "success"

    # The submitter's own claim

    def test_what_its_submitter_claims_is_published_by_nobody_else(self, world: World) -> None:
        wanted = held_by_submitter(world)
        (answer,) = submit(world, wanted)
        assert (answer.is_new, answer.due_at) == (True, world.near(world.now))
        run = world.run(wanted.run_id)
        assert (run.state, run.claimed_by, run.fence) == ("claimed", "submitter", answer.fence)
        assert world.claim().claims == []
        ends_at = world.store.next_deadlines().lease_ends_at
        assert ends_at == world.near(world.now + DISPATCH * SECOND)
        claim = claim_of(wanted, answer)
        assert world.publish(claim) == {wanted.run_id}
        begun = world.begin(claim)
        assert (begun.lease_seconds, begun.max_retries, begun.kind) == (LEASE, 3, ONE_OFF)
        assert world.finish(begun)

    def test_a_beat_takes_over_what_its_submitter_did_not_publish(self, world: World) -> None:
        wanted = held_by_submitter(world)
        stale = claim_of(wanted, submit(world, wanted)[0])
        world.later(DISPATCH + 1)
        assert world.sweep() == set()
        claim = world.claim_one()
        assert (claim.run_id, claim.slot.attempt) == (wanted.run_id, 1)
        assert claim.fence > stale.fence
        assert world.start(stale) is None
        assert world.finish(world.begin(claim))

    # Asked again

    def test_the_same_question_gets_the_same_answer(self, world: World) -> None:
        plain, held = one_off(world, key=key()), held_by_submitter(world, key=key("other"))
        answers = submit(world, plain, held)
        world.later(1)
        again = submit(world, plain, held)
        assert [answer._replace(now=answers[0].now) for answer in again] == answers
        assert world.finish(world.begin(world.claim_one()))
        assert submit(world, plain)[0].is_new
        assert world.claim().claims == []
        assert len(one_offs(world)) == 2

    # When there is work

    def test_a_submission_bumps_no_counter_and_a_pulse_tells_when_it_is_due(self, world: World) -> None:
        before = world.store.pulse()
        assert before.wakes_at is None
        at = world.now + HOUR
        submitted(world, due_at=at)
        pulse = world.store.pulse()
        assert (pulse.changes, pulse.wakes_at) == (before.changes, at)
        submitted(world)
        assert world.store.pulse().wakes_at == world.near(world.now)

    def test_a_pulse_tells_when_a_lease_ends_and_when_a_job_is_due(self, world: World) -> None:
        submit(world, held_by_submitter(world))
        assert world.store.pulse().wakes_at == world.near(world.now + DISPATCH * SECOND)
        world.add(next_run_time=world.noon + 5 * SECOND)
        assert world.store.pulse().wakes_at == world.noon + 5 * SECOND

    def test_a_one_off_that_is_due_is_not_hidden_by_what_nobody_claims(self, world: World) -> None:
        world.add(next_run_time=world.noon - HOUR)
        at = world.now + HOUR
        submitted(world, due_at=at)
        assert world.store.pulse().wakes_at == at

    @pytest.mark.parametrize("is_claimed", [False, True])
    def test_after_a_recovery_no_fence_of_a_one_off_comes_again(self, world: World, is_claimed: bool) -> None:
        run_id = submitted(world)
        run = world.running() if is_claimed else None
        world.store.recover()
        if run is not None:
            assert world.extend(run) == {run_id}
            world.later(LEASE + 1)
            assert world.reclaim(after_lost_lease(0, 5), world.ended_one()) == {run_id}
        assert world.claim_one().fence > 1_000_000_000
        late = held_by_submitter(world)
        assert submit(world, late)[0].fence > 1_000_000_000

"""Claiming: what is due, for whom, and what is recorded in the same transaction."""

from datetime import timedelta

from celery_sqlbeat.model import Claimable
from tests.support.claiming import claim_due
from tests.support.world import DISPATCH, NOON, World


def test_a_due_job_is_claimed_by_exactly_one_of_two_beats(world: World) -> None:
    name = world.add()
    first = world.claim(world.store.for_beat("beat-a"))
    second = world.claim(world.store.for_beat("beat-b"))
    assert [claim.job_name for claim in first.claims] == [name]
    assert second.claims == []
    assert world.job(name)["lockedby"] == "beat-a"


def test_the_slot_is_recorded_with_its_claim(world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    (run,) = world.runs(name)
    assert (run["state"], run["kind"], run["attempt"]) == ("claimed", "schedule", 1)
    assert str(run["runid"]).lower() == claim.run_id
    assert run["fence"] == claim.fence == world.job(name)["fence"]


def test_each_claim_raises_the_fence(world: World) -> None:
    world.add()
    fences = []
    for _ in range(3):
        run = world.running()
        fences.append(run.fence)
        world.finish(run)
        world.later(60)
    assert fences == sorted(set(fences))


def test_claim_ids_differ_from_claim_to_claim(world: World) -> None:
    for _ in range(20):
        world.add()
    claims = world.claim().claims
    assert len({claim.claim_id for claim in claims}) == 20
    assert len({claim.run_id for claim in claims}) == 20


def test_nothing_is_claimed_before_its_time(world: World) -> None:
    world.add(NextRunTime=NOON + timedelta(microseconds=1))
    assert world.claim().claims == []
    world.at(NOON + timedelta(microseconds=1))
    assert len(world.claim().claims) == 1


def test_a_disabled_job_is_not_claimed(world: World) -> None:
    world.add(Enabled=0)
    assert world.claim().claims == []


def test_a_locked_job_is_not_claimed_whoever_locked_it(world: World) -> None:
    world.add(LockedBy="maintenance")
    assert world.claim().claims == []


def test_another_namespace_is_not_seen(world: World) -> None:
    world.add(Namespace=world.namespace + "-other")
    assert world.claim().claims == []


def test_a_retry_waits_for_its_own_time(world: World) -> None:
    world.add(NextRunTime=NOON - timedelta(hours=1), RetryAt=NOON + timedelta(seconds=5))
    assert world.claim().claims == []
    world.later(5)
    assert len(world.claim().claims) == 1


def test_a_batch_is_the_earliest_due_and_no_larger_than_asked(world: World) -> None:
    names = [world.add(NextRunTime=NOON - timedelta(seconds=n)) for n in range(10)]
    claimed = world.claim(batch=4)
    assert {claim.job_name for claim in claimed.claims} == set(names[-4:])
    assert claimed.jobs_read == 4


def test_a_job_of_code_is_claimed_only_by_a_beat_that_has_the_code(world: World) -> None:
    world.add(CodeKey="abc")
    assert world.claim().claims == []
    assert len(claim_due(world.beat, world.planner, 500, DISPATCH, Claimable(code_keys=["x", "abc"])).claims) == 1


def test_the_message_gets_what_the_row_says(world: World) -> None:
    world.add(Args='[1, "ü"]', Kwargs='{"a": null}', Options='{"queue": "q"}', LockTimeoutMinutes=7)
    claim = world.claim_one()
    assert (list(claim.args), claim.kwargs, claim.options) == ([1, "ü"], {"a": None}, {"queue": "q"})
    assert claim.lease_seconds == 420


def test_slots_missed_are_one_run_and_one_record(world: World) -> None:
    name = world.add(NextRunTime=NOON - timedelta(seconds=605))
    claim = world.claim_one()
    assert claim.slot.scheduled_for == NOON - timedelta(seconds=5)
    gap, run = world.runs(name)
    assert (gap["state"], gap["reason"], gap["slotcount"]) == ("skipped", "misfire", 10)
    assert run["state"] == "claimed"


def test_slots_missed_while_the_run_before_went_on_are_overlap(world: World) -> None:
    name = world.add(Schedule="cron * * * * *")
    run = world.running()
    world.later(300)
    world.worker.extend([(run, 600)])
    world.finish(run)
    world.claim_one()
    assert [(run["state"], run["reason"]) for run in world.runs(name)] == [
        ("success", None),
        ("skipped", "overlap"),
        ("claimed", None),
    ]


def test_a_job_too_late_for_its_policy_skips_to_its_next_slot(world: World) -> None:
    name = world.add(NextRunTime=NOON - timedelta(seconds=95), Policies='{"misfire": "skip", "misfire_grace": 30}')
    assert world.claim().claims == []
    assert world.states(name) == ["skipped"]
    assert world.sql("SELECT NextRunTime FROM Jobs WHERE JobName = ? AND NextRunTime > ?", name, NOON)


def test_a_slot_run_again_by_hand_is_a_further_attempt(world: World) -> None:
    """Two jobs share a batch: the one set back must not keep the other from its run."""
    name = world.add()
    world.finish(world.running())
    world.sql("UPDATE Jobs SET NextRunTime = ? WHERE JobName = ?", NOON, name)
    other = world.add()
    assert {claim.job_name for claim in world.claim().claims} == {name, other}
    assert [(run["state"], run["attempt"]) for run in world.runs(name)] == [("success", 1), ("claimed", 2)]


def test_a_once_job_runs_once_and_is_finished(world: World) -> None:
    name = world.add(Schedule="once 2027-03-01T12:00:00Z")
    world.finish(world.running())
    job = world.job(name)
    assert (job["enabled"], job["disabledreason"], job["nextruntime"]) == (0, "finished", None)
    world.later(3600)
    assert world.claim().jobs_read == 0


def test_a_lock_that_stands_for_no_run_is_freed_in_time(world: World) -> None:
    """A DBA may lock a row by hand with nothing but a name; it must not be locked for ever."""
    name = world.add(LockedBy="maintenance")
    assert world.beat.release_orphan_locks(120) == []
    world.later(119)
    assert world.beat.release_orphan_locks(120) == []
    world.later(2)
    assert world.beat.release_orphan_locks(120) == [name]
    assert world.job(name)["lockedby"] is None


def test_a_job_unlocked_by_hand_runs_again_under_a_new_attempt(world: World) -> None:
    name = world.add()
    run = world.running()
    world.sql("UPDATE Jobs SET LockedBy = NULL WHERE JobName = ?", name)
    claim = world.claim_one()
    assert claim.slot.scheduled_for == run.scheduled_for
    assert world.states(name) == ["retry", "claimed"]
    assert world.worker.extend([(run, 120)]).lost == {run.run_id}
    assert not world.finish(run)

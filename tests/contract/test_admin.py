"""What an administrator does: define, pause, run now, delete, look back, replay, purge."""

from datetime import timedelta
from typing import Any, cast

import pytest

from celery_sqlbeat.model import (
    AddJob,
    DeleteJob,
    GapRecord,
    JobDraft,
    NewRun,
    PauseJob,
    ResumeJob,
    StartedRun,
    UpdateJob,
)
from celery_sqlbeat.model.lifecycle import DLQ, Ending
from celery_sqlbeat.store.protocols import DeadLetters, JobQuery, OldRuns, Purged, RunQuery
from tests.contract.conftest import Place
from tests.support.world import NOON, OVERLAP, World


def draft(name: str, **fields: object) -> JobDraft:
    plain = JobDraft(name, "app.task", "every 60s", None, None, None, None, None, True, None, NOON, None)
    return plain._replace(**fields)  # type: ignore[arg-type]  # the tests name fields of the right types


def test_a_job_is_added_once(world: World) -> None:
    assert world.write(AddJob(draft("a")), AddJob(draft("b"))) == {"a", "b"}
    assert world.write(AddJob(draft("b", task_name="other")), AddJob(draft("c"))) == {"c"}
    assert world.record("b").task_name == "app.task"
    assert {claim.job_name for claim in world.claim().claims} == {"a", "b", "c"}


def test_a_job_of_another_namespace_may_have_the_same_name(world: World) -> None:
    world.add("a", Namespace=world.namespace + "-other")
    assert world.write(AddJob(draft("a"))) == {"a"}


def test_text_of_any_kind_survives(world: World) -> None:
    strange = "Zürich \"quoted\" 'single' \\ back {brace} %s ? :name 日本 🕰"
    world.write(AddJob(draft(strange, kwargs='{"k": "\\u0000 ü"}')))
    record = world.record(strange)
    assert (record.job_name, record.kwargs) == (strange, '{"k": "\\u0000 ü"}')


def test_a_change_needs_the_version_that_was_read(world: World) -> None:
    world.write(AddJob(draft("a")))
    version = world.record("a").version
    assert world.write(UpdateJob(draft("a", task_name="other"), version=version, reschedule=False))
    assert world.record("a").version == version + 1
    stale = UpdateJob(draft("a", task_name="third"), version=version, reschedule=False)
    assert world.admin.write_jobs([stale]) == (set(), {"a"})
    assert world.record("a").task_name == "other"


def test_a_change_moves_the_next_run_only_if_asked(world: World) -> None:
    world.write(AddJob(draft("a")))
    later = NOON + timedelta(hours=1)
    world.write(UpdateJob(draft("a", next_run_time=later), version=1, reschedule=False))
    assert world.record("a").next_run_time == NOON
    world.write(UpdateJob(draft("a", next_run_time=later), version=2, reschedule=True))
    assert world.record("a").next_run_time == later


def test_a_change_ends_quarantine(world: World) -> None:
    name = world.add(Args="nonsense")
    world.claim()
    assert world.write(UpdateJob(draft(name), version=1, reschedule=False))
    assert world.claim_one().job_name == name


def test_jobs_are_listed_page_by_page(world: World) -> None:
    world.write(*(AddJob(draft(f"job-{n}")) for n in range(5)))
    first = [*world.admin.jobs(JobQuery(page_size=3))]
    rest = world.admin.jobs(JobQuery(after_name=first[-1], page_size=3))
    assert [*first, *rest] == [f"job-{n}" for n in range(5)]
    assert [record.job_name for record in rest.values()] == [*rest]


def test_every_change_is_noticed(world: World) -> None:
    seen = [world.beat.changes()]

    def noticed() -> bool:
        seen.append(world.beat.changes())
        return seen[-1] > seen[-2]

    world.write(AddJob(draft("a")))
    assert noticed()
    world.write(UpdateJob(draft("a"), version=1, reschedule=False))
    assert noticed()
    world.write(PauseJob("a", "tired"))
    assert noticed()
    world.write(ResumeJob("a", version=3, next_run_time=NOON))
    assert noticed()
    world.add_slot(world.record("a").job_id)
    assert noticed()
    world.write(DeleteJob("a"))
    assert noticed()
    assert world.beat.next_deadlines().changes == seen[-1]
    assert not noticed()


def test_a_paused_job_waits_and_says_why(world: World) -> None:
    world.write(AddJob(draft("a")))
    assert world.write(PauseJob("a", "month end"))
    assert world.claim().claims == []
    assert (world.record("a").disabled_reason, world.record("a").version) == ("month end", 2)
    assert not world.write(PauseJob("a", "again"))


def test_a_resumed_job_has_the_record_of_what_was_skipped(world: World) -> None:
    world.write(AddJob(draft("a")))
    world.write(PauseJob("a", "month end"))
    job = world.record("a")
    gap = GapRecord(world.ids.run_ids(1)[0], job.job_id, NOON, NOON + timedelta(minutes=2), 3, "paused")
    assert not world.write(ResumeJob("a", version=job.version + 1, next_run_time=NOON, gap=gap))
    assert world.runs("a") == []
    at = NOON + timedelta(minutes=3)
    assert world.write(ResumeJob("a", version=job.version, next_run_time=at, gap=gap))
    assert world.record("a").version == job.version + 1
    (skipped,) = world.runs("a")
    assert (skipped["state"], skipped["reason"], skipped["slotcount"]) == ("skipped", "paused", 3)
    world.later(180)
    assert world.claim_one().slot.scheduled_for == NOON + timedelta(minutes=3)


def test_an_extra_slot_runs_at_once_and_leaves_the_schedule_alone(world: World) -> None:
    name = world.add(NextRunTime=NOON + timedelta(hours=1))
    assert world.add_slot(world.job(name)["id"])
    assert world.beat.next_deadlines().outbox_at == NOON
    run = world.running()
    assert (run.kind, run.job_name) == ("manual", name)
    world.finish(run)
    assert world.beat.next_deadlines().due_at == NOON + timedelta(hours=1)


def test_an_extra_slot_waits_for_the_end_of_the_run(world: World) -> None:
    name = world.add()
    run = world.running()
    world.add_slot(world.job(name)["id"])
    assert world.claim().claims == []
    world.finish(run)
    assert world.claim_one().slot.kind == "manual"


def test_an_extra_slot_of_a_job_that_is_gone_is_refused(world: World) -> None:
    assert not world.add_slot(world.ids.random_id())


def test_two_extra_slots_run_one_after_the_other(world: World) -> None:
    name = world.add(NextRunTime=NOON + timedelta(hours=1))
    job_id = str(world.job(name)["id"])
    world.add_slot(job_id)
    world.later(1)
    world.add_slot(job_id)
    for _ in range(2):
        world.finish(world.running())
    assert world.states(name) == ["success", "success"]
    assert world.claim().claims == []


def test_an_idle_job_is_deleted_at_once_and_its_history_stays(world: World) -> None:
    name = world.add()
    world.finish(world.running())
    assert world.write(DeleteJob(name))
    assert world.admin.jobs(JobQuery(names=[name])) == {}
    assert world.states(name) == ["success"]
    assert not world.write(DeleteJob(name))


def test_a_running_job_is_deleted_when_its_run_has_ended(world: World) -> None:
    name = world.add()
    run = world.running()
    world.write(DeleteJob(name))
    assert world.record(name).delete_requested == 1
    assert world.finish(run)
    (row,) = world.beat.rows_needing_repair(10)
    assert row.delete_requested
    world.beat.delete_requested([row.job_id])
    assert world.admin.jobs(JobQuery(names=[name])) == {}
    assert world.states(name) == ["success"]


def test_a_running_job_is_deleted_by_force_and_its_run_is_cancelled(world: World) -> None:
    name = world.add()
    run = world.running()
    world.write(DeleteJob(name, force=True))
    assert world.admin.jobs(JobQuery(names=[name])) == {}
    assert world.states(name) == ["cancelled"]
    assert world.worker.extend([(run, 120)]).lost == {run.run_id}
    assert not world.finish(run)


def overlapping(world: World, name: str) -> StartedRun:
    """Return a run that goes on by itself while its job is free."""
    claim = world.claim_one()
    run = world.start(claim)
    assert run is not None
    world.beat.mark_dispatched([claim])
    assert world.job(name)["lockedby"] is None
    return run


def test_overlapping_runs_end_before_their_job_is_deleted(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    runs = [overlapping(world, name)]
    world.later(60)
    runs.append(overlapping(world, name))
    world.write(DeleteJob(name))
    assert world.record(name).delete_requested == 1
    assert world.finish(runs[0])
    (row,) = world.beat.rows_needing_repair(10)
    assert world.beat.delete_requested([row.job_id]).done == set()
    assert world.finish(runs[1], Ending("retry", "failed", 60.0, 1))
    assert world.beat.delete_requested([row.job_id]).done == {row.job_id}
    assert world.states(name) == ["success", "cancelled"], "nobody would take the retry up"


def test_overlapping_runs_are_cancelled_where_their_job_is_deleted_by_force(world: World) -> None:
    name = world.add(Policies=OVERLAP)
    runs = [overlapping(world, name)]
    world.later(60)
    runs.append(overlapping(world, name))
    world.later(60)
    claim = world.claim_one()
    began = world.start(claim)
    assert began is not None, "it holds the job, too, until its beat says that the message was sent"
    runs.append(began)
    world.write(DeleteJob(name, force=True))
    assert world.admin.jobs(JobQuery(names=[name])) == {}
    assert world.states(name) == ["cancelled"] * 3
    assert world.worker.extend([(run, 120) for run in runs]).lost == {run.run_id for run in runs}
    assert not any(world.finish(run) for run in runs)


def test_what_waits_for_a_deleted_job_is_cancelled(world: World) -> None:
    name = world.add()
    world.finish(world.running(), Ending("retry", "failed", 60.0, 1))
    world.add_slot(world.job(name)["id"])
    world.write(DeleteJob(name))
    assert world.states(name) == ["cancelled", "cancelled"]
    assert world.beat.next_deadlines().outbox_at is None


def dead_letter(world: World) -> str:
    name = world.add()
    run = world.running()
    world.finish(run, Ending(DLQ, "retries exhausted", None, 1, 0, "ValueError: no", "Traceback ..."))
    return name


def test_a_dead_letter_keeps_its_error(world: World) -> None:
    name = dead_letter(world)
    (letter,) = world.letters()
    assert (letter.job_name, letter.error, letter.traceback) == (name, "ValueError: no", "Traceback ...")
    assert world.admin.runs(RunQuery(run_ids=[letter.run_id])) == [letter]


def test_a_dead_letter_is_replayed_once_under_a_new_run_id(world: World) -> None:
    name = dead_letter(world)
    (letter,) = world.letters()
    (new_id,) = world.ids.run_ids(1)
    assert world.admin.enqueue([NewRun(new_id, letter.job_id, letter)]) == {new_id}
    assert world.replay(letter) == set()
    claim = world.claim_one()
    assert (claim.run_id, claim.slot.scheduled_for, claim.slot.attempt) == (new_id, letter.scheduled_for, 2)
    world.publish(claim)
    run = world.start(claim)
    assert run is not None
    world.finish(run)
    assert world.states(name) == ["dlq", "success"]


def test_a_replay_leaves_the_schedule_alone(world: World) -> None:
    name = dead_letter(world)
    (letter,) = world.letters()
    next_run = world.job(name)["nextruntime"]
    world.replay(letter)
    world.finish(world.running())
    assert world.job(name)["nextruntime"] == next_run


def test_dead_letters_are_purged_only_by_name(world: World) -> None:
    dead_letter(world)
    (letter,) = world.letters()
    world.later(86400 * 365)
    world.admin.purge(OldRuns(86400, limit=100))
    assert world.letters() == [letter]
    assert world.admin.purge(DeadLetters([letter.run_id])) == Purged(1)
    assert world.letters() == []


def test_history_older_than_asked_is_purged_in_batches(world: World) -> None:
    name = world.add()
    for _ in range(5):
        world.finish(world.running())
        world.later(60)
    waiting = world.running()
    world.later(86400)
    first = world.admin.purge(OldRuns(3600, limit=3))
    assert first.rows == 3 and first.last == NOON + timedelta(minutes=2)
    second = world.admin.purge(OldRuns(3600, first.last, limit=3))
    assert second.rows == 2 and second.last == NOON + timedelta(minutes=4)
    assert world.admin.purge(OldRuns(3600, limit=3)).rows == 0
    assert world.states(name) == ["running"]
    assert world.finish(waiting)


@pytest.mark.parametrize("place", ["postgresql", "mysql", "mssql"], indirect=True)
def test_two_beats_purge_different_rows_and_neither_waits(world: World, place: Place) -> None:
    for _ in range(6):
        world.add()
        world.finish(world.running())
    world.later(86400)
    other = cast(Any, place.dialect()).connect()
    other.begin()
    scope = {"namespace": world.namespace, "keep_seconds": 3600.0, "after": NOON - timedelta(days=1)}
    (theirs,) = other.fetch("purge_runs", batch_size=2, **scope)
    assert theirs[1] == 2
    assert world.admin.purge(OldRuns(3600, limit=3)).rows == 3
    assert world.admin.purge(OldRuns(3600, limit=3)).rows == 1
    other.rollback()  # it died: what it was deleting is left to others
    other.close()
    assert world.admin.purge(OldRuns(3600, limit=3)).rows == 2


def test_a_failed_attempt_that_waits_is_not_purged(world: World) -> None:
    name = world.add()
    world.finish(world.running(), Ending("retry", "failed", 7200.0, 1))
    world.later(7000)
    world.admin.purge(OldRuns(60, limit=100))
    assert world.states(name) == ["retry"]
    world.later(300)
    assert world.claim_one().slot.attempt == 2


def test_history_is_read_newest_first_and_page_by_page(world: World) -> None:
    name = world.add()
    for _ in range(5):
        world.finish(world.running())
        world.later(60)
    job_id = world.record(name).job_id
    slots = [NOON + timedelta(minutes=n) for n in (4, 3, 2, 1, 0)]
    assert [run.scheduled_for for run in world.admin.runs(RunQuery(job_id=job_id, page_size=10))] == slots
    page = world.admin.runs(RunQuery(job_id=job_id, page_size=2))
    rest = world.admin.runs(RunQuery(job_id=job_id, after=page[-1], page_size=2))
    assert [run.scheduled_for for run in rest] == slots[2:4]
    first = world.admin.runs(RunQuery(page_size=3))
    rest = world.admin.runs(RunQuery(after=first[-1], page_size=3))
    assert len({run.run_id for run in (*first, *rest)}) == 5
    assert all(run.job_id == job_id for run in first)


def test_a_page_that_ends_between_two_attempts_of_a_slot_loses_neither(world: World) -> None:
    name = world.add()
    for _ in range(3):
        world.finish(world.running(), Ending("retry", "failed", 0.0, 1))
    job_id = world.record(name).job_id
    first = world.admin.runs(RunQuery(job_id=job_id, page_size=2))
    rest = world.admin.runs(RunQuery(job_id=job_id, after=first[-1], page_size=2))
    assert [run.attempt for run in (*first, *rest)] == [3, 2, 1]


def test_two_namespaces_see_nothing_of_each_other(world: World) -> None:
    name = dead_letter(world)
    run = world.letters()[0]
    from celery_sqlbeat.store import Store

    other = Store(world.store.database, world.namespace + "-other").for_admin()
    assert (other.jobs(JobQuery(names=[name])), other.jobs(JobQuery())) == ({}, {})
    assert (other.runs(RunQuery()), other.runs(RunQuery(only_dead=True))) == ([], [])
    assert other.runs(RunQuery(run_ids=[run.run_id])) == []
    assert other.enqueue([NewRun(world.ids.run_ids(1)[0], run.job_id, run)]) == set()
    assert other.purge(DeadLetters([run.run_id])).rows == 0
    assert not other.write_jobs([DeleteJob(name)]).done
    assert not other.write_jobs([PauseJob(name, "x")]).done
    assert not other.enqueue([NewRun(world.ids.run_ids(1)[0], run.job_id)])
    assert other.purge(OldRuns(0, limit=100)).rows == 0


@pytest.mark.parametrize("amount", [1, 500])
def test_empty_and_full_batches_are_answered(world: World, amount: int) -> None:
    assert world.admin.write_jobs([]) == (set(), set())
    assert world.admin.enqueue([]) == set()
    assert world.admin.purge(DeadLetters([])) == Purged(0)
    assert world.beat.mark_published([]).done == set()
    assert world.worker.start([]) == {}
    assert world.worker.extend([]).lost == set()
    assert world.worker.finish([]) == set()
    assert len(world.write(*(AddJob(draft(f"{n:04}")) for n in range(amount)))) == amount
    assert len(world.claim().claims) == amount


def test_runs_that_go_on_are_listed_with_their_jobs_also_those_beside_others(world: World) -> None:
    alone, beside = world.add("alone"), world.add("beside", Policies='{"overlap": "allow"}')
    waiting = world.add("waiting")
    claims = {claim.job_name: claim for claim in world.claim().claims}
    world.publish(claims[alone], claims[waiting])
    runs = {name: world.start(claims[name]) for name in (alone, beside)}
    assert world.store.for_admin().running(10.0, 10) == []
    world.later(11)
    found = world.store.for_admin().running(10.0, 10)
    assert {row.job_name: row.run_id for row in found} == {name: run.run_id for name, run in runs.items() if run}
    assert all((row.now - row.started_at).total_seconds() >= 10 and row.worker for row in found)
    assert len(world.store.for_admin().running(10.0, 1)) == 1
    assert world.store.for_admin().running(60.0, 10) == []

"""Jobs over rows that are compared and set: one name, one version, one fence."""

from datetime import timedelta

import pytest

from celery_sqlbeat.model import (
    AddJob,
    CancelRun,
    DeleteIdleJob,
    DeleteJob,
    GapRecord,
    JobWrite,
    JobWriteResult,
    NewRun,
    PauseJob,
    QuarantineJob,
    RepairJob,
    ResumeJob,
    UpdateJob,
)
from celery_sqlbeat.store.keyvalue.tables import JOB, NAME, RUN, micros
from celery_sqlbeat.store.records import JobQuery, RunQuery
from tests.support.memory_place import NOON, Bench, draft

HOUR = timedelta(hours=1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_name_is_given_once(bench: Bench) -> None:
    bench.add("a")
    assert bench.writer.write_jobs([AddJob(draft("a", task_name="other")), AddJob(draft("b"))]) == JobWriteResult(
        {"b"}, {"a"}
    )
    assert bench.job("a")["task_name"] == "app.task"


def test_of_two_who_add_one_name_at_once_the_second_loses(bench: Bench) -> None:
    other = bench.writer
    bench.between(lambda: other.write_jobs([AddJob(draft("a", task_name="theirs"))]))
    assert bench.writer.write_jobs([AddJob(draft("a"))]).conflicts == {"a"}
    assert bench.job("a")["task_name"] == "theirs"
    assert len(bench.jobs.jobs(JobQuery(of_tasks=["app.task", "theirs"]))) == 1


def test_a_job_has_the_fields_that_were_given(bench: Bench) -> None:
    write = AddJob(
        draft("a", kwargs='{"ü": 1}', start_at=NOON - HOUR, next_run_time=NOON + HOUR, enabled=False),
        last_run_time=NOON - HOUR,
        disabled_reason="asleep",
    )
    bench.writer.write_jobs([write])
    (record,) = bench.jobs.jobs(JobQuery(names=["a", "b"])).values()
    assert (record.start_at, record.next_run_time, record.last_run_time) == (NOON - HOUR, NOON + HOUR, NOON - HOUR)
    assert (record.enabled, record.disabled_reason, record.kwargs) == (0, "asleep", '{"ü": 1}')
    assert (record.version, record.fence, record.delete_requested, record.interval_minutes) == (1, 0, 0, 10)
    assert record.now == NOON


def test_a_change_needs_the_version_that_was_read(bench: Bench) -> None:
    bench.add("a")
    assert bench.writer.write_jobs([UpdateJob(draft("a", args="[1]"), version=1, reschedule=False)]).done == {"a"}
    stale = UpdateJob(draft("a", args="[2]"), version=1, reschedule=False)
    assert bench.writer.write_jobs([stale]).conflicts == {"a"}
    assert (bench.job("a")["args"], bench.job("a")["version"]) == ("[1]", 2)


def test_a_change_goes_on_where_only_the_lease_was_extended_meanwhile(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.between(lambda: bench.put(JOB, job_id, lease_ends_at=NOON + HOUR))
    assert bench.writer.write_jobs([PauseJob("a", "tired")]).done == {"a"}
    assert bench.job("a")["lease_ends_at"] is not None


def test_a_change_waits_for_no_end_of_a_run_but_notices_one(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.between(lambda: bench.put(JOB, job_id, fence=1))
    moved = UpdateJob(draft("a", next_run_time=NOON + HOUR), version=1, reschedule=True, fence=0)
    assert bench.writer.write_jobs([moved]).conflicts == {"a"}


def test_a_paused_job_is_resumed_with_the_record_of_what_was_skipped(bench: Bench) -> None:
    job_id = bench.add("a")
    assert bench.writer.write_jobs([PauseJob("a", "month end")]).done
    assert not bench.writer.write_jobs([PauseJob("a", "again")]).done
    gap = GapRecord("gap-1", job_id, NOON, NOON + HOUR, 61, "paused")
    resume = ResumeJob("a", version=2, next_run_time=NOON + 2 * HOUR, gap=gap)
    assert bench.writer.write_jobs([resume]).done and not bench.writer.write_jobs([resume]).done
    (run,) = bench.history.runs(RunQuery())
    assert (run.state, run.reason, run.slot_count, run.last_slot) == ("skipped", "paused", 61, NOON + HOUR)
    assert bench.job("a")["newest_slot"] == micros(NOON + HOUR)


def test_a_schedule_that_had_ended_goes_on_with_another_one(bench: Bench) -> None:
    bench.add("a")
    bench.writer.write_jobs([PauseJob("a", "finished")])
    bench.writer.write_jobs([UpdateJob(draft("a"), version=2, reschedule=False)])
    assert bench.job("a")["enabled"] == 0
    bench.writer.write_jobs([UpdateJob(draft("a"), version=3, reschedule=True)])
    assert (bench.job("a")["enabled"], bench.job("a").get("disabled_reason")) == (1, None)


def test_what_is_written_together_is_written_whole_or_not_at_all(bench: Bench) -> None:
    bench.add("a")
    before = bench.changes()
    writes: list[JobWrite] = [AddJob(draft("b")), UpdateJob(draft("a", args="[1]"), version=7, reschedule=False)]
    assert bench.writer.write_jobs(writes, together=True) == JobWriteResult(set(), {"a"})
    assert bench.names() == ["a"] and bench.changes() == before
    assert bench.writer.write_jobs([AddJob(draft("b")), PauseJob("a", "x")], together=True).done == {"a", "b"}
    assert bench.changes() > before


def test_jobs_are_listed_page_by_page_in_order_of_their_names(bench: Bench) -> None:
    bench.add("c", "ü", "a", "B", "b")
    first = list(bench.jobs.jobs(JobQuery(page_size=3)))
    rest = list(bench.jobs.jobs(JobQuery(page_size=3, after_name=first[-1])))
    assert [*first, *rest] == ["B", "a", "b", "c", "ü"]
    assert bench.jobs.jobs(JobQuery(page_size=3, after_name="ü")) == {}


def test_jobs_that_were_set_aside_are_listed_and_repaired(bench: Bench) -> None:
    ids = {name: bench.add(name) for name in "abc"}
    aside = [QuarantineJob(name, ids[name], 0, 1, "nonsense") for name in "ca"]
    assert bench.writer.write_jobs([*aside, QuarantineJob("b", ids["b"], 1, 1, "x")]) == JobWriteResult(
        {"a", "c"}, {"b"}
    )
    assert list(bench.jobs.jobs(JobQuery(only_quarantined=True))) == ["a", "c"]
    assert list(bench.jobs.jobs(JobQuery(only_quarantined=True, after_name="a"))) == ["c"]
    rows = bench.jobs.jobs(JobQuery(needing_repair_of=""))
    assert [row.job_id for row in rows.values()] == sorted((ids["a"], ids["c"]))
    assert bench.writer.write_jobs([RepairJob("a", ids["a"], 0, 1, NOON + HOUR, None)]).done == {"a"}
    assert list(bench.jobs.jobs(JobQuery(only_quarantined=True))) == ["c"]
    assert bench.jobs.jobs(JobQuery(names=["a"]))["a"].next_run_time == NOON + HOUR


def test_what_needs_repair_is_that_of_the_asking_app_page_by_page(bench: Bench) -> None:
    ids = sorted(bench.add(f"job-{n}", next_run_time=None) for n in range(5))
    for at, owner in enumerate(("shop", "other", None, "shop", "other")):
        bench.put(JOB, ids[at], code_owner=owner)
    bench.put(JOB, ids[4], delete_requested=1)

    def page(after_id: str) -> list[str]:
        query = JobQuery(needing_repair_of="shop", after_id=after_id, page_size=2)
        return [record.job_id for record in bench.jobs.jobs(query).values()]

    assert page("00000000-0000-0000-0000-000000000000") == [ids[0], ids[2]]
    assert page(ids[2]) == [ids[3], ids[4]]
    assert page(ids[4]) == []


def test_only_enabled_jobs_of_a_task_are_listed(bench: Bench) -> None:
    bench.add("a", "b", "c")
    bench.add("d", task_name="app.other")
    bench.writer.write_jobs([PauseJob("b", "x")])
    assert list(bench.jobs.jobs(JobQuery(of_tasks=["app.task"]))) == ["a", "c"]
    assert list(bench.jobs.jobs(JobQuery(of_tasks=["app.task", "app.other"], page_size=2))) == ["a", "c"]
    assert bench.jobs.jobs(JobQuery(of_tasks=["app.none"])) == {}


def test_a_job_that_is_deleted_and_defined_again_goes_on_with_its_fence(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.put(JOB, job_id, fence=7)
    assert bench.writer.write_jobs([DeleteJob("a")]).done == {"a"}
    assert bench.names() == [] and bench.row(JOB, job_id) is None
    bench.add("a", "b")
    assert (bench.job("a")["fence"], bench.job("b")["fence"]) == (7, 0)


def test_a_fence_that_grows_as_the_job_is_deleted_is_not_lost(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.between(lambda: bench.put(JOB, job_id, fence=9))
    bench.writer.write_jobs([DeleteJob("a")])
    bench.add("a")
    assert bench.job("a")["fence"] == 9


def test_a_held_job_is_deleted_once_its_run_has_ended(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.hold("a")
    assert bench.writer.write_jobs([DeleteJob("a")]).done == {"a"}
    assert bench.job("a")["delete_requested"] == 1
    idle = DeleteIdleJob("a", job_id)
    assert bench.writer.write_jobs([idle]).conflicts == {"a"}
    bench.put(JOB, job_id, locked_by=None)
    assert bench.writer.write_jobs([idle]).done == {"a"}
    assert bench.names() == []


def test_a_job_is_deleted_by_force_and_its_runs_are_cancelled(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.hold("a")
    lease_end = NOON + HOUR
    held = {"state": "running", "prior_state": "dispatched", "exclusive": 0, "started_retry": 0}
    bench.run(job_id, "run-2", attempt=2, held_by="worker", lease_ends_at=lease_end, **held)
    bench.writer.write_jobs([DeleteJob("a", force=True)])
    assert bench.names() == []
    assert [run.state for run in bench.history.runs(RunQuery())] == ["cancelled", "cancelled"]


def test_an_overlapping_run_keeps_its_job_until_it_ends(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.run(job_id, "run-1", state="running", held_by="worker", lease_ends_at=NOON + HOUR)
    bench.writer.write_jobs([DeleteJob("a")])
    assert bench.job("a")["delete_requested"] == 1


def test_what_waits_for_a_deleted_job_is_cancelled(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.run(job_id, "run-1", state="retry")
    bench.put(JOB, job_id, retry_at=NOON, retry_run_id="run-1")
    bench.writer.enqueue([NewRun("run-2", job_id)])
    bench.writer.write_jobs([DeleteJob("a")])
    runs = bench.history.runs(RunQuery())
    assert [(run.state, run.reason, run.due_at) for run in runs] == [("cancelled", "job deleted", None)] * 2
    assert {run.prior_state for run in runs} == {"retry", "scheduled"}


def test_the_run_that_holds_a_job_is_cancelled_by_hand(bench: Bench) -> None:
    bench.add("a", "b")
    bench.hold("a")
    assert bench.writer.write_jobs([CancelRun("a", "wrong data"), CancelRun("b"), CancelRun("c")]) == JobWriteResult(
        {"a"}, {"b", "c"}
    )
    (run,) = bench.history.runs(RunQuery())
    assert (run.state, run.reason) == ("cancelled", "wrong data")
    assert bench.job("a").get("locked_by") is None


def test_extra_slots_wait_in_the_outbox_each_at_an_instant_of_its_own(bench: Bench) -> None:
    job_id = bench.add("a")
    before = bench.changes()
    ids = [f"run-{n}" for n in range(3)]
    assert bench.writer.enqueue([NewRun(run_id, job_id) for run_id in ids]) == set(ids)
    assert bench.writer.enqueue([NewRun("run-9", "no such job")]) == set()
    runs = bench.history.runs(RunQuery(job_id=job_id))
    assert len({run.scheduled_for for run in runs}) == 3
    assert {(run.kind, run.state, run.prior_state, run.due_at) for run in runs} == {
        ("manual", "scheduled", "new", NOON)
    }
    assert bench.changes() > before


def test_nothing_is_added_to_a_job_that_is_about_to_go(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.hold("a")
    bench.writer.write_jobs([DeleteJob("a")])
    assert bench.writer.enqueue([NewRun("run-2", job_id)]) == set()


def test_an_attempt_is_not_added_to_a_job_that_is_deleted_meanwhile(bench: Bench) -> None:
    job_id = bench.add("a")
    other = bench.writer
    bench.between(lambda: other.write_jobs([DeleteJob("a")]))
    assert bench.writer.enqueue([NewRun("run-1", job_id)]) == set()
    assert bench.row(RUN, "run-1") is None


def test_a_dead_letter_is_replayed_once(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.letter("a", attempt=3, error="ValueError: no")
    (letter,) = bench.history.runs(RunQuery(only_dead=True))
    replays = [NewRun("run-2", job_id, letter), NewRun("run-3", job_id, letter)]
    assert bench.writer.enqueue(replays) == {"run-2"}
    before = bench.job("a")
    assert bench.writer.enqueue(replays[1:]) == set()
    assert bench.job("a") == before
    (new,) = bench.history.runs(RunQuery(run_ids=["run-2"]))
    assert (new.kind, new.scheduled_for, new.attempt) == (letter.kind, letter.scheduled_for, 4)
    assert (new.prior_state, new.state) == ("dlq", "scheduled")
    (letter,) = bench.history.runs(RunQuery(only_dead=True))
    assert letter.reason == "replayed"


@pytest.mark.parametrize("fields", [{"attempt": 2}, {"state": "running"}, {"state": "retry", "due_at": NOON}])
def test_a_dead_letter_is_not_replayed_beside_a_later_or_open_attempt(bench: Bench, fields: dict[str, object]) -> None:
    job_id = bench.add("a")
    bench.letter("a", "run-1")
    bench.run(job_id, "run-0", **{"attempt": 0, **fields})
    (letter,) = bench.history.runs(RunQuery(only_dead=True))
    assert bench.writer.enqueue([NewRun("run-2", job_id, letter)]) == set()


def test_jobs_are_counted_by_kind(bench: Bench) -> None:
    ids = {name: bench.add(name) for name in "abcdefg"}
    bench.put(JOB, ids["a"], code_owner="shop", next_run_time=NOON + HOUR)
    bench.put(JOB, ids["b"], code_owner="shop", enabled=0)
    bench.put(JOB, ids["c"], quarantine="bad")
    bench.put(JOB, ids["d"], retry_at=NOON - HOUR)
    bench.put(JOB, ids["e"], code_owner="other", code_key="only its code")
    bench.put("owner", "shop", changes=0)
    bench.put("owner", "other", changes=0)
    bench.hold("f")
    bench.letter("g", "run-2")
    counts = bench.jobs.counts()
    assert (counts.total, counts.active, counts.held, counts.retrying, counts.quarantined) == (7, 6, 1, 1, 1)
    assert (counts.due, counts.due_at, counts.dead) == (3, NOON - HOUR, 1)
    assert (counts.owners, counts.states, counts.now) == ({"shop": 1, "other": 1}, {}, NOON)


def test_the_attempts_of_recent_slots_are_counted_by_state(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.run(job_id, "run-1")
    bench.run(job_id, "run-2", scheduled_for=NOON - HOUR)
    bench.run(job_id, "run-3", state="skipped", slot_count=5)
    bench.run(job_id, "run-4", state="claimed")
    assert bench.jobs.counts(60.0).states == {"success": 1, "skipped": 5, "claimed": 1}
    assert bench.jobs.counts(3600.0).states["success"] == 1
    assert bench.jobs.counts(3601.0).states["success"] == 2


def test_runs_that_go_on_are_listed_with_their_jobs_oldest_first(bench: Bench) -> None:
    bench.add("a", "b", "c")
    bench.hold("a", "run-1")
    held = {"state": "running", "held_by": "worker", "lease_ends_at": NOON + HOUR, "started_by": "w"}
    bench.run(bench.job_id("b"), "run-2", started_at=NOON - HOUR, **held)
    assert [run.job_name for run in bench.jobs.running(1.0, 9)] == ["b"]
    bench.later(10)
    runs = bench.jobs.running(10.0, 9)
    assert [(run.job_name, run.run_id, run.worker) for run in runs] == [("b", "run-2", "w"), ("a", "run-1", "worker")]
    assert bench.jobs.running(0.0, 1) == bench.jobs.running(0.0, 9)[:1]


def test_a_deleted_name_keeps_its_fence_and_the_instant_of_its_end(bench: Bench) -> None:
    bench.add("a")
    bench.writer.write_jobs([DeleteJob("a")])
    assert bench.row(NAME, "a") == {"fence": 0, "deleted_at": micros(NOON)}

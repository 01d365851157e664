"""Jobs: how administrators write them, and how they are listed."""

from celery_sqlbeat.model import (
    AddJob,
    CancelRun,
    DeleteJob,
    GapRecord,
    JobWrite,
    JobWriteResult,
    PauseJob,
    ResumeJob,
    SealJob,
    UpdateJob,
)
from celery_sqlbeat.store.records import JobQuery
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.contract.claims import add_from_code, code_job
from celery_sqlbeat.testing.world import HOUR, MINUTE, OVERLAP, World

NOTHING = JobWriteResult(set(), set())


class JobContract(Contract):
    """Rules of `write_jobs` and `jobs`."""

    def test_a_job_is_added_once(self, world: World) -> None:
        assert world.write(AddJob(world.draft("a")), AddJob(world.draft("b"))) == {"a", "b"}
        again = [AddJob(world.draft("b", task_name="other")), AddJob(world.draft("c"))]
        assert world.store.write_jobs(again) == JobWriteResult({"c"}, {"b"})
        assert world.job("b").task_name == "app.task"
        assert {claim.job_name for claim in world.claim().claims} == {"a", "b", "c"}

    def test_a_job_has_every_field_of_its_draft(self, world: World) -> None:
        draft = world.draft(
            "a",
            schedule="cron 0 3 * * *",
            time_zone="Asia/Tokyo",
            args="[1]",
            kwargs='{"k": 2}',
            options='{"queue": "q"}',
            policies='{"max_retries": 1}',
            start_at=world.noon + HOUR,
            next_run_time=world.noon + 2 * HOUR,
            lock_timeout_minutes=5,
        )
        world.write(AddJob(draft))
        job = world.job("a")
        assert {field: getattr(job, field) for field in draft._fields} == {**draft._asdict(), "enabled": 1}
        assert (job.version, job.delete_requested, job.quarantine, job.locked_by) == (1, 0, None, None)
        assert (job.code_owner, job.code_key, job.last_run_time, job.retry_at) == (None, None, None, None)

    def test_a_job_that_ran_elsewhere_before_keeps_that(self, world: World) -> None:
        last = world.noon - HOUR
        added = AddJob(world.draft("a", enabled=False), last_run_time=last, disabled_reason="moved")
        assert world.write(added) == {"a"}
        job = world.job("a")
        assert (job.last_run_time, job.disabled_reason, job.enabled) == (last, "moved", 0)

    def test_a_job_of_another_namespace_may_have_the_same_name(self, world: World) -> None:
        sibling = world.sibling()
        assert sibling.write_jobs([AddJob(world.draft("a"))]).done == {"a"}
        assert world.write(AddJob(world.draft("a", task_name="other"))) == {"a"}
        assert sibling.jobs(JobQuery(names=["a"]))["a"].task_name == "app.task"

    def test_text_of_any_kind_survives(self, world: World) -> None:
        strange = "Zürich \"quoted\" 'single' \\ back {brace} %s ? :name 日本 🕰"
        world.write(AddJob(world.draft(strange, kwargs='{"k": "\\u0000 ü"}')))
        job = world.job(strange)
        assert (job.job_name, job.kwargs) == (strange, '{"k": "\\u0000 ü"}')

    def test_names_differ_by_case(self, world: World) -> None:
        assert world.write(AddJob(world.draft("nightly")), AddJob(world.draft("Nightly"))) == {"nightly", "Nightly"}
        assert list(world.store.jobs(JobQuery(names=["Nightly"]))) == ["Nightly"]

    def test_a_change_needs_the_version_that_was_read(self, world: World) -> None:
        world.write(AddJob(world.draft("a")))
        version = world.job("a").version
        assert world.write(UpdateJob(world.draft("a", task_name="other"), version=version, reschedule=False))
        assert world.job("a").version == version + 1
        stale = UpdateJob(world.draft("a", task_name="third"), version=version, reschedule=False)
        assert world.store.write_jobs([stale]) == JobWriteResult(set(), {"a"})
        assert world.job("a").task_name == "other"

    def test_a_pause_and_a_deletion_need_the_version_that_was_read(self, world: World) -> None:
        name = world.add()
        for wrong in (0, 2):
            for write in (PauseJob(name, "x", version=wrong), DeleteJob(name, version=wrong, force=True)):
                assert world.store.write_jobs([write]) == JobWriteResult(set(), {name})
        assert (world.job(name).enabled, world.job(name).version) == (1, 1)
        assert world.write(DeleteJob(name, version=1)) == {name}

    def test_arguments_are_replaced_as_they_are_to_be_kept_and_nothing_else_changes(self, world: World) -> None:
        name = world.add(args="[1]", kwargs="{}", policies=OVERLAP)
        before, changes = world.job(name), world.store.pulse().changes
        assert world.write(SealJob(name, version=before.version, args="sealed", kwargs=None)) == {name}
        after = before._replace(args="sealed", kwargs=None, version=before.version + 1)
        assert world.job(name)._replace(now=before.now) == after
        assert world.store.pulse().changes > changes
        stale = SealJob(name, version=before.version, args="[2]", kwargs=None)
        assert world.store.write_jobs([stale]) == JobWriteResult(set(), {name})

    def test_a_change_moves_the_next_run_only_if_asked(self, world: World) -> None:
        world.write(AddJob(world.draft("a")))
        first = world.job("a").next_run_time
        later = world.noon + HOUR
        world.write(UpdateJob(world.draft("a", next_run_time=later), version=1, reschedule=False))
        assert world.job("a").next_run_time == first
        world.write(UpdateJob(world.draft("a", next_run_time=later), version=2, reschedule=True))
        assert world.job("a").next_run_time == later

    def test_a_change_may_need_that_no_run_has_ended_since(self, world: World) -> None:
        name = world.add(schedule="every 1s")
        job = world.job(name)
        world.finish(world.running())
        update = UpdateJob(world.draft(name), version=job.version, reschedule=True, fence=job.fence)
        assert world.store.write_jobs([update]).conflicts == {name}
        fresh = UpdateJob(world.draft(name), version=job.version, reschedule=True, fence=world.job(name).fence)
        assert world.write(fresh) == {name}

    def test_a_change_of_a_running_job_leaves_its_run_alone(self, world: World) -> None:
        name = world.add()
        run = world.running()
        world.change(name, task_name="app.other")
        assert world.job(name).run_id == run.run_id
        assert world.finish(run)
        assert world.job(name).task_name == "app.other"

    def test_a_change_may_enable_and_disable(self, world: World) -> None:
        name = world.add()
        world.change(name, enabled=False)
        assert world.job(name).enabled == 0 and world.claim().claims == []
        world.change(name, enabled=True)
        assert (world.job(name).enabled, world.job(name).disabled_reason) == (1, None)
        assert world.claim_one().job_name == name

    def test_nothing_can_be_changed_that_is_not_there(self, world: World) -> None:
        writes: list[JobWrite] = [UpdateJob(world.draft("a"), version=1, reschedule=False), PauseJob("b", "x")]
        assert world.store.write_jobs(writes) == JobWriteResult(set(), {"a", "b"})

    def test_writes_together_succeed_all_or_not_at_all(self, world: World) -> None:
        world.write(AddJob(world.draft("a")))
        mixed: list[JobWrite] = [AddJob(world.draft("b")), PauseJob("a", "x", version=99)]
        assert world.store.write_jobs(mixed, together=True) == JobWriteResult(set(), {"a"})
        assert not world.is_there("b") and world.job("a").enabled == 1
        both: list[JobWrite] = [AddJob(world.draft("b")), PauseJob("a", "x", version=1)]
        assert world.store.write_jobs(both, together=True) == JobWriteResult({"a", "b"}, set())

    def test_no_writes_are_no_results(self, world: World) -> None:
        before = world.changes()
        assert world.store.write_jobs([]) == NOTHING == world.store.write_jobs([], together=True)
        assert world.changes() == before

    def test_a_large_batch_is_added(self, world: World) -> None:
        names = {f"{n:04}" for n in range(500)}
        assert world.write(*(AddJob(world.draft(name)) for name in names)) == names
        assert len(world.claim().claims) == 500

    # Pause and resume

    def test_a_paused_job_waits_and_says_why(self, world: World) -> None:
        world.write(AddJob(world.draft("a")))
        assert world.write(PauseJob("a", "month end"))
        assert world.claim().claims == []
        job = world.job("a")
        assert (job.enabled, job.disabled_reason, job.version) == (0, "month end", 2)
        assert not world.write(PauseJob("a", "again"))
        assert world.job("a").disabled_reason == "month end"

    def test_a_resumed_job_has_the_record_of_what_was_skipped(self, world: World) -> None:
        name = world.add()
        world.write(PauseJob(name, "month end"))
        job = world.job(name)
        slots = world.noon, world.noon + 2 * MINUTE
        gap = GapRecord(world.ids.run_ids(1)[0], job.job_id, *slots, 3, "paused")
        at = world.noon + 3 * MINUTE
        assert not world.write(ResumeJob(name, version=job.version + 1, next_run_time=at, gap=gap))
        assert world.runs(name) == []
        assert world.write(ResumeJob(name, version=job.version, next_run_time=at, gap=gap))
        resumed = world.job(name)
        assert (resumed.enabled, resumed.disabled_reason, resumed.version) == (1, None, job.version + 1)
        assert resumed.next_run_time == at
        (skipped,) = world.runs(name)
        assert (skipped.state, skipped.reason, skipped.slot_count) == ("skipped", "paused", 3)
        assert (skipped.scheduled_for, skipped.last_slot) == slots

    def test_a_job_without_a_slot_left_stays_disabled_when_it_is_resumed(self, world: World) -> None:
        name = world.add()
        world.write(PauseJob(name, "x"))
        assert world.write(ResumeJob(name, version=2, next_run_time=None, finished=True))
        assert (world.job(name).enabled, world.job(name).disabled_reason) == (0, "finished")

    def test_only_a_paused_job_is_resumed(self, world: World) -> None:
        name = world.add()
        assert not world.write(ResumeJob(name, version=1, next_run_time=world.noon + HOUR))

    # Cancel

    def test_a_run_is_cancelled_and_its_job_goes_on(self, world: World) -> None:
        name = world.add()
        run = world.running()
        assert world.write(CancelRun(name, "wrong data")) == {name}
        (row,) = world.runs(name)
        assert (row.state, row.reason) == ("cancelled", "wrong data")
        assert world.extend(run) == {run.run_id}
        assert not world.finish(run)
        assert (world.job(name).locked_by, world.job(name).next_run_time) == (None, world.near(world.noon + MINUTE))

    def test_where_no_run_holds_the_job_there_is_none_to_cancel(self, world: World) -> None:
        name = world.add()
        assert world.store.write_jobs([CancelRun(name)]) == JobWriteResult(set(), {name})
        world.finish(world.running())
        assert world.store.write_jobs([CancelRun(name)]) == JobWriteResult(set(), {name})
        assert world.states(name) == ["success"]

    # Lists

    def test_jobs_are_listed_page_by_page_in_the_order_of_their_names(self, world: World) -> None:
        world.write(*(AddJob(world.draft(f"job-{n}")) for n in (3, 1, 4, 0, 2)))
        first = [*world.store.jobs(JobQuery(page_size=3))]
        rest = world.store.jobs(JobQuery(after_name=first[-1], page_size=3))
        assert [*first, *rest] == [f"job-{n}" for n in range(5)]
        assert [job.job_name for job in rest.values()] == [*rest]

    def test_jobs_are_found_by_their_names(self, world: World) -> None:
        world.write(AddJob(world.draft("a")), AddJob(world.draft("b")))
        assert world.store.jobs(JobQuery(names=["b", "c"])).keys() == {"b"}
        assert world.store.jobs(JobQuery(names=[])) == {}
        assert world.store.jobs(JobQuery(names=["half a character \ud800"])) == {}

    def test_enabled_jobs_are_found_by_their_tasks(self, world: World) -> None:
        world.add("one", task_name="app.one")
        world.add("two", task_name="app.two")
        world.add("off", task_name="app.one", enabled=False)
        jobs = world.store.jobs(JobQuery(of_tasks=["app.one", "app.three"]))
        assert {name: job.task_name for name, job in jobs.items()} == {"one": "app.one"}
        assert len(world.store.jobs(JobQuery(of_tasks=["app.one", "app.two"], page_size=1))) == 1
        assert world.store.jobs(JobQuery(of_tasks=[])) == {}

    def test_what_changes_no_job_is_no_news(self, world: World) -> None:
        name = world.add()
        before = world.store.pulse().changes
        assert world.store.write_jobs([]).done == set()
        assert world.write(PauseJob("nosuch", "x")) == world.write(PauseJob(name, "x", version=7)) == set()
        assert world.store.pulse().changes == before
        assert world.write(PauseJob(name, "x")) == {name}
        assert world.store.pulse().changes > before

    def test_quarantined_jobs_are_listed_by_themselves(self, world: World) -> None:
        wrong = world.add(args="nonsense")
        world.add(next_run_time=world.noon + HOUR)
        assert world.store.jobs(JobQuery(only_quarantined=True)) == {}
        world.claim()
        assert [*world.store.jobs(JobQuery(only_quarantined=True))] == [wrong]

    def test_jobs_are_counted_by_their_kinds(self, world: World) -> None:
        assert world.store.counts()[:5] == (0, 0, 0, 0, 0)
        held, retrying, wrong = world.add("held"), world.add("retrying"), world.add(args="nonsense")
        runs = {run.job_name: run for run in world.ask(*map(world.request, world.claim().claims)).values()}
        world.finish(runs[retrying], world.failure(60.0))
        world.add("off", enabled=False)
        due = world.add("due")
        add_from_code(world, "shop", code_job("later"), at=world.noon + HOUR)
        counts = world.store.counts(3600.0)
        assert (counts.total, counts.held, counts.retrying, counts.quarantined) == (6, 1, 1, 1)
        assert (counts.due, counts.due_at, counts.dead) == (1, world.job(due).next_run_time, 0)
        assert world.job(held).locked_by is not None and world.job(wrong).quarantine is not None
        assert counts.states == {"running": 1, "retry": 1}
        assert counts.owners == {"shop": 1}
        assert world.store.counts().states == {}

    def test_a_job_whose_runs_overlap_is_free_while_they_go_on(self, world: World) -> None:
        name = world.add(policies=OVERLAP)
        world.overlapping()
        assert (world.job(name).locked_by, world.job(name).run_id) == (None, None)

"""The Python handle on a real database: jobs are defined, paused, resumed, run and deleted."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, schedules

from celery_sqlbeat.api import Handle, Job
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import FieldError, JobBeingDeleted, NoSuchJob, ScheduleError, VersionConflict
from celery_sqlbeat.model import CODE_SCHEDULE, JobRecord, ResumeJob
from celery_sqlbeat.model.lifecycle import Ending
from celery_sqlbeat.store.records import JobQuery
from celery_sqlbeat.store.sql.store import SqlStore
from tests.support.world import NOON, World

HOUR = timedelta(hours=1)


@pytest.fixture
def beat(world: World) -> Handle:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(timezone="UTC")
    return Handle(app, read_settings({"sqlbeat_namespace": world.namespace}, {}), world.store)


def put(beat: Handle, name: str = "a", **fields: Any) -> Job:
    return beat.jobs.put(name, **{"task": "shop.add", "schedule": "every 60s", **fields})


def test_a_job_is_what_was_put(beat: Handle, world: World) -> None:
    job = put(
        beat,
        schedule="cron 0 3 * * *",
        args=[1, "x", None],
        kwargs={"k": {"deep": [1.5]}},
        options={"queue": "slow", "expires": timedelta(minutes=5)},
        timezone="Europe/Berlin",
        overlap="allow",
        misfire_grace=timedelta(minutes=2),
        max_retries=0,
    )
    assert job == beat.jobs.get("a")
    assert (job.name, job.task, job.schedule, job.timezone) == ("a", "shop.add", "cron 0 3 * * *", "Europe/Berlin")
    assert (job.args, job.kwargs) == ([1, "x", None], {"k": {"deep": [1.5]}})
    assert job.options == {"queue": "slow", "expires": 300.0}
    assert job.policies == {"overlap": "allow", "misfire_grace": 120.0, "max_retries": 0}
    assert (job.enabled, job.state, job.version, job.code_owner) == (True, "waits", 1, None)
    assert job.next_run_time == NOON.replace(hour=2) + timedelta(days=1)


def test_what_was_put_is_claimed_and_runs(beat: Handle, world: World) -> None:
    put(beat, args=[1, 2])
    world.later(60)
    claim = world.claim_one()
    assert (claim.job_name, claim.task_name, list(claim.args)) == ("a", "shop.add", [1, 2])
    assert claim.slot.scheduled_for == world.now


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (5, "every 5s"),
        (0.5, "every 0.5s"),
        (timedelta(hours=1, minutes=30), "every 1h30m"),
        ("every 90m", "every 1h30m"),
        (schedules.crontab(minute="*/5"), "cron */5 * * * *"),
        (schedules.schedule(30), "every 30s"),
        (schedules.solar("sunset", 51.5, -0.12), "solar sunset 51.5 -0.12"),
        ("once 2027-04-01T00:00:00Z", "once 2027-04-01T00:00:00Z"),
    ],
    ids=str,
)
def test_a_schedule_may_be_written_in_many_ways(beat: Handle, schedule: Any, text: str) -> None:
    assert put(beat, schedule=schedule).schedule == text


def test_a_crontab_of_celery_brings_its_time_zone(beat: Handle) -> None:
    crontab = schedules.crontab(hour=3, minute=0, nowfun=lambda: NOON.astimezone(ZoneInfo("Asia/Tokyo")))
    assert put(beat, schedule=crontab).timezone in ("Asia/Tokyo", "UTC")  # which, differs between versions of Celery


def test_an_interval_begins_one_interval_later_or_at_its_start(beat: Handle) -> None:
    assert put(beat, "a").next_run_time == NOON + timedelta(seconds=60)
    assert put(beat, "b", start="2027-03-02T00:00:30+01:00").next_run_time == NOON.replace(hour=23, second=30)
    assert put(beat, "c", start=NOON - timedelta(seconds=90)).next_run_time == NOON + timedelta(seconds=30)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": ""}, "JobName = ''"),
        ({"name": "x" * 201}, "JobName = "),
        ({"name": 5}, "JobName = 5"),
        ({"name": " a"}, "JobName = ' a'"),
        ({"task": None}, "TaskName = None"),
        ({"task": ""}, "TaskName = ''"),
        ({"schedule": None}, "Schedule = None: say when"),
        ({"schedule": "every never"}, "Schedule = 'every never': an interval is written like"),
        ({"schedule": 0}, "Schedule"),
        ({"schedule": "cron 0 0 30 2 *"}, "Schedule = 'cron 0 0 30 2 *': no such day"),
        ({"args": "abc"}, "Args = 'abc': write a list"),
        ({"args": [object]}, "Args = "),
        ({"args": [float("nan")]}, "Args = "),
        ({"kwargs": [1]}, "Kwargs = [1]: write a mapping"),
        ({"options": {"priority": 9999}}, "Options.priority = 9999"),
        ({"enabled": "yes"}, "Enabled = 'yes'"),
        ({"start": "tomorrow"}, "StartAt = 'tomorrow'"),
        ({"start": NOON.replace(tzinfo=None)}, "StartAt = "),
        ({"overlap": "maybe"}, "Policies.overlap = 'maybe': write one of 'queue', 'skip', 'allow', 'replace'"),
        ({"timezone": "Mars/Base"}, "Policies.timezone = 'Mars/Base'"),
        ({"lock_timeout": 0.1}, "Policies.lock_timeout = 0.1"),
    ],
)
def test_what_cannot_work_is_refused_by_field_value_and_remedy_and_writes_nothing(
    beat: Handle, world: World, fields: dict[str, Any], named: str
) -> None:
    before = world.beat.changes()
    with pytest.raises(FieldError) as refusal:
        put(beat, **fields)
    assert str(refusal.value).startswith(named)
    assert len(str(refusal.value)) < 600
    assert beat.jobs.list() == []
    assert world.beat.changes() == before


def test_a_schedule_class_of_ones_own_is_refused_with_the_place_where_it_works(beat: Handle) -> None:
    class Odd(schedules.schedule):
        pass

    with pytest.raises(ScheduleError, match="beat_schedule"):
        put(beat, schedule=Odd(5))


def test_put_is_the_whole_definition(beat: Handle) -> None:
    put(beat, args=[1], options={"queue": "q"}, overlap="allow", timezone="Europe/Berlin")
    job = put(beat, task="shop.other")
    assert (job.task, job.args, job.options, job.policies, job.timezone) == ("shop.other", [], {}, {}, None)
    assert job.version == 2


def test_the_same_again_changes_nothing(beat: Handle, world: World) -> None:
    first = put(beat, args=[1], start=NOON + HOUR, jitter=0.0)
    seen = world.beat.changes()
    world.later(30)
    again = put(beat, args=[1], start=NOON + HOUR, jitter=0.0)
    assert (again.version, again.next_run_time) == (first.version, first.next_run_time)
    assert world.beat.changes() == seen


def test_another_task_leaves_the_next_run_where_it_is(beat: Handle, world: World) -> None:
    first = put(beat)
    world.later(30)
    assert put(beat, task="shop.other").next_run_time == first.next_run_time


def test_another_interval_counts_from_the_last_run(beat: Handle, world: World) -> None:
    put(beat)
    world.later(60)
    world.finish(world.running())
    ran = world.now
    world.later(20)
    assert put(beat, schedule="every 90s").next_run_time == ran + timedelta(seconds=90)
    world.later(100)
    assert put(beat, schedule="every 30s").next_run_time == world.now


def test_another_crontab_or_another_time_zone_is_counted_anew(beat: Handle) -> None:
    put(beat, schedule="cron 0 3 * * *")
    assert put(beat, schedule="cron 0 15 * * *").next_run_time == NOON.replace(hour=15)
    assert put(beat, schedule="cron 0 15 * * *", timezone="Europe/Berlin").next_run_time == NOON.replace(hour=14)


def test_a_finished_job_goes_on_when_it_gets_another_instant(beat: Handle, world: World) -> None:
    put(beat, schedule="once 2027-03-01T12:01:00Z")
    world.later(60)
    world.finish(world.running())
    done = beat.jobs.get("a")
    assert done is not None and (done.enabled, done.disabled_reason) == (False, "finished")
    again = put(beat, schedule="once 2027-03-01T13:00:00Z")
    assert (again.enabled, again.disabled_reason, again.next_run_time) == (True, None, NOON + HOUR)


def test_put_mends_a_row_that_was_set_aside(beat: Handle, world: World) -> None:
    name = world.add(Args="nonsense")
    world.claim()
    broken = beat.jobs.get(name)
    assert broken is not None and broken.state == "set aside" and broken.args == "nonsense"
    assert "Args" in (broken.quarantine or "")
    assert put(beat, name).quarantine is None


def test_a_pause_survives_a_put_that_does_not_speak_of_it(beat: Handle) -> None:
    put(beat)
    beat.jobs.pause("a", "month end")
    job = put(beat, task="shop.other")
    assert (job.enabled, job.disabled_reason) == (False, "month end")


def test_put_may_pause_and_enable(beat: Handle, world: World) -> None:
    assert put(beat, enabled=False).state == "paused"
    assert world.claim().claims == []
    world.later(150)
    job = put(beat, enabled=True)
    assert (job.enabled, job.next_run_time) == (True, NOON + timedelta(seconds=180))
    (gap,) = beat.runs.list("a")
    assert (gap.state, gap.reason, gap.slots) == ("skipped", "paused", 2)
    assert put(beat, enabled=False).disabled_reason == "paused"


def test_a_change_takes_the_version_that_was_read(beat: Handle) -> None:
    job = put(beat)
    changed = put(beat, task="shop.other", version=job.version)
    for change in (
        lambda: put(beat, task="shop.third", version=job.version),
        lambda: beat.jobs.pause("a", version=job.version),
        lambda: beat.jobs.resume("a", version=job.version),
        lambda: beat.jobs.delete("a", version=job.version),
        lambda: put(beat, "new", version=1),
    ):
        with pytest.raises(VersionConflict):
            change()
    assert beat.jobs.list() == [beat.jobs.get("a")]
    assert beat.jobs.pause("a", version=changed.version).version == changed.version + 1
    assert beat.jobs.delete("a", version=changed.version + 1)


def test_a_change_without_a_version_wins_over_one_that_came_between(
    beat: Handle, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(beat)
    read = SqlStore.jobs
    late = iter([True])

    def read_and_be_late(self: Any, names: Any) -> Any:
        found = read(self, names)
        if next(late, False):
            world.change("a", Version=7)
        return found

    monkeypatch.setattr(SqlStore, "jobs", read_and_be_late)
    assert put(beat, task="shop.other").version == 8


def test_jobs_are_listed_by_name_over_all_pages(beat: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sqlbeat.api.jobs.PAGE", 2)
    for name in "cabed":
        put(beat, name)
    assert [job.name for job in beat.jobs] == [*"abcde"]
    assert [job.name for job in beat.jobs.list()] == [*"abcde"]


def test_what_was_missed_while_paused_is_one_gap(beat: Handle, world: World) -> None:
    put(beat)
    job = beat.jobs.pause("a", "month end")
    assert (job.state, job.disabled_reason) == ("paused", "month end")
    assert beat.jobs.pause("a", "again").version == job.version
    world.later(3 * 60 + 30)
    job = beat.jobs.resume("a")
    assert (job.enabled, job.disabled_reason) == (True, None)
    assert job.next_run_time == NOON + timedelta(minutes=4)
    (gap,) = beat.runs.list("a")
    assert (gap.state, gap.reason, gap.slots) == ("skipped", "paused", 3)
    assert (gap.scheduled_for, gap.last_slot) == (NOON + timedelta(minutes=1), NOON + timedelta(minutes=3))
    assert beat.jobs.resume("a").version == job.version
    world.later(30)
    assert world.claim_one().slot.scheduled_for == NOON + timedelta(minutes=4)


def test_a_job_resumed_before_its_slot_has_missed_nothing(beat: Handle, world: World) -> None:
    put(beat)
    beat.jobs.pause("a")
    world.later(30)
    assert beat.jobs.resume("a").next_run_time == NOON + timedelta(minutes=1)
    assert beat.runs.list("a") == []


def test_a_job_resumed_at_the_very_instant_of_its_slot_fires_it(beat: Handle, world: World) -> None:
    put(beat)
    beat.jobs.pause("a")
    world.later(120)
    assert beat.jobs.resume("a").next_run_time == world.now
    (gap,) = beat.runs.list("a")
    assert (gap.slots, gap.reason) == (1, "paused")
    assert world.claim_one().slot.scheduled_for == world.now


def test_a_single_instant_that_passed_while_paused_is_over(beat: Handle, world: World) -> None:
    put(beat, schedule="once 2027-03-01T12:01:00Z")
    beat.jobs.pause("a")
    world.later(120)
    job = beat.jobs.resume("a")
    assert (job.enabled, job.disabled_reason) == (False, "finished")
    assert [(run.state, run.reason) for run in beat.runs.list("a")] == [("skipped", "paused")]


def test_a_slot_that_runs_or_waits_for_its_retry_is_not_skipped_by_a_resumption(beat: Handle, world: World) -> None:
    put(beat)
    world.later(60)
    run = world.running()
    beat.jobs.pause("a")
    world.later(10)
    assert beat.jobs.resume("a").next_run_time == NOON + timedelta(minutes=1)
    beat.jobs.pause("a")
    assert world.finish(run, Ending("retry", "failed", 5.0, 1))
    assert beat.jobs.resume("a").next_run_time == NOON + timedelta(minutes=1)
    assert [run.state for run in beat.runs.list("a")] == ["retry"]


def test_a_resumption_does_not_undo_the_next_slot_of_a_run_that_has_just_ended(beat: Handle, world: World) -> None:
    put(beat)
    world.later(60)
    run = world.running()
    beat.jobs.pause("a")
    seen = world.record("a")
    assert world.finish(run)
    moved = world.record("a").next_run_time
    stale = ResumeJob("a", version=seen.version, next_run_time=seen.next_run_time, fence=seen.fence)
    assert not world.write(stale)
    assert beat.jobs.resume("a").next_run_time == moved


def test_a_put_that_enables_does_not_begin_anew_what_has_just_come_to_its_end(
    beat: Handle, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the read and the write of a put the only run of a paused job ends."""
    once = f"once {NOON + timedelta(seconds=60):%Y-%m-%dT%H:%M:%S}Z"
    put(beat, schedule=once)
    world.later(60)
    run = world.running()
    beat.jobs.pause("a")
    read = SqlStore.jobs

    def then_the_run_ends(admin: SqlStore, query: JobQuery) -> dict[str, JobRecord]:
        monkeypatch.undo()
        found = read(admin, query)
        assert world.finish(run)
        return found

    monkeypatch.setattr(SqlStore, "jobs", then_the_run_ends)
    job = put(beat, schedule=once, enabled=True)
    assert (job.enabled, job.disabled_reason, job.next_run_time) == (False, "finished", None)


def test_a_pause_leaves_the_run_alone(beat: Handle, world: World) -> None:
    put(beat)
    world.later(60)
    run = world.running()
    beat.jobs.pause("a")
    assert world.finish(run)
    assert [run.state for run in beat.runs.list("a")] == ["success"]


@pytest.mark.parametrize("reason", ["", " ", "x" * 201, "finished", "deleted", "left the code", None])
def test_a_reason_is_text_that_means_nothing_else(beat: Handle, reason: Any) -> None:
    put(beat)
    with pytest.raises(FieldError, match="DisabledReason"):
        beat.jobs.pause("a", reason)


def test_an_extra_slot_runs_now_and_leaves_the_schedule_alone(beat: Handle, world: World) -> None:
    job = put(beat)
    run = beat.jobs.run_now("a")
    assert (run.job_name, run.kind, run.state, run.scheduled_for) == ("a", "manual", "scheduled", NOON)
    assert world.claim_one().run_id == run.id
    after = beat.jobs.get("a")
    assert after is not None and after.next_run_time == job.next_run_time


def test_a_running_job_is_deleted_when_its_run_ends(beat: Handle, world: World) -> None:
    put(beat)
    world.later(60)
    run = world.running()
    assert beat.jobs.delete("a")
    job = beat.jobs.get("a")
    assert job is not None and (job.deleted, job.state) == (True, "deleted")
    for change in (lambda: put(beat), lambda: beat.jobs.pause("a"), lambda: beat.jobs.run_now("a")):
        with pytest.raises(JobBeingDeleted):
            change()
    world.finish(run)
    world.beat.delete_requested([job.id])
    assert beat.jobs.get("a") is None


def test_a_job_is_defined_anew_as_soon_as_the_run_that_its_deletion_waited_for_has_ended(
    beat: Handle, world: World
) -> None:
    first = put(beat)
    world.later(60)
    run = world.running()
    assert beat.jobs.delete("a")
    world.finish(run)
    job = put(beat)  # no beat has deleted the row yet
    assert job.id != first.id and not job.deleted
    assert world.job("a")["fence"] > run.fence


def test_a_running_job_is_deleted_by_force_and_its_run_is_cancelled(beat: Handle, world: World) -> None:
    put(beat)
    world.later(60)
    run = world.running()
    assert beat.jobs.delete("a", force=True)
    assert beat.jobs.get("a") is None
    assert world.states("a") == ["cancelled"]
    assert not world.finish(run)


def test_a_conflict_cancels_no_run(beat: Handle, world: World) -> None:
    put(beat)
    world.later(60)
    run = world.running()
    with pytest.raises(VersionConflict):
        beat.jobs.delete("a", force=True, version=99)
    assert world.finish(run)


def test_a_miss_is_none_or_names_what_is_missing(beat: Handle) -> None:
    assert beat.jobs.get("nobody") is None
    assert not beat.jobs.delete("nobody")
    for change in (beat.jobs.pause, beat.jobs.resume, beat.jobs.run_now, beat.runs.list):
        with pytest.raises(NoSuchJob, match="'nobody'"):
            change("nobody")


def of_the_code(world: World, **columns: Any) -> str:
    return world.add("code", CodeOwner="shop", TimeZone="UTC", Schedule="cron 0 15 * * *", **columns)


def test_a_job_of_the_code_takes_policies_and_enabled_only(beat: Handle, world: World) -> None:
    of_the_code(world, Args="[1]", NextRunTime=NOON.replace(hour=15))
    job = beat.jobs.put("code", overlap="allow", lock_timeout=300)
    assert (job.policies, job.args, job.task) == ({"overlap": "allow", "lock_timeout": 300.0}, [1], "app.task")
    assert job.next_run_time == NOON.replace(hour=15)
    assert beat.jobs.put("code", enabled=False).enabled is False
    assert beat.jobs.get("code").policies == {}  # type: ignore[union-attr]  # it is there
    for fields in ({"task": "x"}, {"schedule": "every 5s"}, {"args": [1]}, {"start": NOON}):
        with pytest.raises(FieldError, match="the beat_schedule of shop defines this job"):
            beat.jobs.put("code", **fields)


def test_a_job_of_the_code_may_get_another_time_zone(beat: Handle, world: World) -> None:
    of_the_code(world, NextRunTime=NOON.replace(hour=15))
    job = beat.jobs.put("code", timezone="Europe/Berlin")
    assert (job.timezone, job.next_run_time) == ("Europe/Berlin", NOON.replace(hour=14))
    assert job.policies == {"timezone": "Europe/Berlin"}


def test_a_job_that_only_code_can_time_is_paused_and_resumed(beat: Handle, world: World) -> None:
    world.add("odd", Schedule=CODE_SCHEDULE, CodeKey="k", CodeOwner="shop", NextRunTime=NOON + HOUR)
    beat.jobs.pause("odd")
    assert beat.jobs.resume("odd").next_run_time == NOON + HOUR
    beat.jobs.pause("odd")
    world.later(7200)
    assert beat.jobs.resume("odd").next_run_time == world.now
    assert beat.jobs.put("odd", max_retries=1).policies == {"max_retries": 1}


def test_a_job_says_who_holds_it(beat: Handle, world: World) -> None:
    put(beat)
    world.later(60)
    run = world.running()
    job = beat.jobs.get("a")
    assert job is not None
    assert (job.state, job.locked_by, job.run_id) == ("held", "worker-1", run.run_id)
    assert job.lease_ends_at == world.now + timedelta(seconds=run.lease_seconds)
    world.finish(run, Ending("retry", "failed", 30.0, 1))
    job = beat.jobs.get("a")
    assert job is not None and (job.state, job.retry_at) == ("retries", world.now + timedelta(seconds=30))


def test_a_row_that_a_dba_wrote_is_shown_as_a_job(beat: Handle, world: World) -> None:
    world.sql(
        "INSERT INTO Jobs (Namespace, JobName, TaskName, LockTimeoutMinutes) VALUES (?, 'hand', 't', 7)",
        world.namespace,
    )
    job = beat.jobs.get("hand")
    assert job is not None
    assert (job.schedule, job.next_run_time, job.policies) == ("every 10m", None, {"lock_timeout": 420.0})
    assert job.read_at.tzinfo is timezone.utc or job.read_at.utcoffset() == timedelta()


def test_records_are_frozen_and_become_json(beat: Handle) -> None:
    import json

    job = put(beat, args=[1])
    with pytest.raises(AttributeError):
        job.name = "b"  # type: ignore[misc]  # that is the point
    again = json.loads(json.dumps(job.as_json()))
    assert (again["name"], again["state"], again["next_run_time"]) == ("a", "waits", "2027-03-01T12:01:00Z")


def test_of_many_who_change_a_job_at_once_none_is_overwritten(beat: Handle) -> None:
    put(beat, kwargs={"count": 0})
    threads, each = 6, 10
    conflicts: list[VersionConflict] = []

    def count() -> None:
        for _ in range(each):
            while True:
                job = beat.jobs.get("a")
                assert job is not None
                try:
                    put(beat, kwargs={"count": job.kwargs["count"] + 1}, version=job.version)
                except VersionConflict as conflict:
                    conflicts.append(conflict)
                else:
                    break

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(count) for _ in range(threads)]:
            done.result(60)
    job = beat.jobs.get("a")
    assert job is not None and job.kwargs == {"count": threads * each}
    assert job.version == 1 + threads * each


@pytest.mark.parametrize("again", [{}, {"enabled": True}], ids=["as it was", "enabled"])
def test_what_ran_once_does_not_run_again_because_it_is_put_again(
    beat: Handle, world: World, again: dict[str, Any]
) -> None:
    put(beat, schedule="once 2027-03-01T12:01:00Z", **again)
    world.later(60)
    world.finish(world.running())
    before = beat.jobs.get("a")
    after = put(beat, schedule="once 2027-03-01T12:01:00Z", **again)
    assert before is not None and after.version == before.version
    assert beat.jobs.resume("a").disabled_reason == "finished"
    world.beat.repair_rows(*world.planner.repairs(world.beat.rows_needing_repair(10)))
    world.later(60)
    assert world.claim().claims == []

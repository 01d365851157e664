"""Jobs from elsewhere, on real databases.

A batch is written or it is not, and what goes out comes in the same.
"""

import json
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat.api import Handle
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import LineError
from celery_sqlbeat.model import AddJob, JobDraft, JobWriteResult, UpdateJob
from celery_sqlbeat.store.records import JobQuery
from celery_sqlbeat.store.sql.store import SqlStore
from celery_sqlbeat.transfer.jsonl import LeftOut, export_lines, read_lines
from celery_sqlbeat.transfer.plan import BATCH, ImportStep, import_in_batches
from tests.support.world import NOON, World

HOUR = timedelta(hours=1)


@pytest.fixture
def beat(world: World) -> Handle:
    return handle_on(world.store)


def handle_on(store: SqlStore) -> Handle:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(timezone="UTC")
    return Handle(app, read_settings({"sqlbeat_namespace": store.namespace}, {}), store)


def draft(name: str, **fields: Any) -> JobDraft:
    plain = JobDraft(name, "app.task", "every 60s", None, None, None, None, None, True, None, NOON, None)
    return plain._replace(**fields)


def take_in(beat: Handle, lines: list[str], dry_run: bool = False) -> list[ImportStep]:
    found = []
    for one in read_lines(lines, beat.rules):
        assert not isinstance(one, LineError), one
        found.append((one.job, one.spec))
    return list(import_in_batches(beat.store, beat.rules, found, dry_run))


def line(name: str, **fields: Any) -> str:
    return json.dumps({"name": name, "task": "app.task", "schedule": "every 1m", **fields})


def actions(steps: list[ImportStep]) -> dict[str, str]:
    return {step.name: step.action for step in steps}


def out(beat: Handle, with_state: bool = True) -> list[str]:
    found = list(export_lines(beat.store, beat.rules, with_state))
    assert all(isinstance(one, str) for one in found), found
    return [str(one) for one in found]


def test_a_new_job_keeps_its_last_run_and_why_it_is_disabled(world: World) -> None:
    disabled = AddJob(draft("b", enabled=False), disabled_reason="why")
    assert world.write(AddJob(draft("a"), last_run_time=NOON - HOUR), disabled) == {"a", "b"}
    jobs = world.admin.jobs(JobQuery(names=["a", "b"]))
    assert (jobs["a"].last_run_time, jobs["a"].enabled, jobs["a"].disabled_reason) == (NOON - HOUR, 1, None)
    assert (jobs["b"].last_run_time, jobs["b"].enabled, jobs["b"].disabled_reason) == (None, 0, "why")


def test_a_batch_is_written_whole_or_not_at_all(world: World) -> None:
    world.write(AddJob(draft("there")), AddJob(draft("changed")))
    before = world.beat.changes()
    new, there = AddJob(draft("new")), AddJob(draft("there"))
    assert world.admin.write_jobs([new, there], together=True) == JobWriteResult(set(), {"there"})
    stale = UpdateJob(draft("changed", task_name="app.other"), version=7, reschedule=False)
    assert world.admin.write_jobs([new, stale], together=True) == JobWriteResult(set(), {"changed"})
    assert set(world.admin.jobs(JobQuery(names=["new", "there", "changed"]))) == {"there", "changed"}
    assert world.beat.changes() == before, "nothing was written, so there is nothing to notice"


def test_a_batch_is_noticed(world: World) -> None:
    before = world.beat.changes()
    world.admin.write_jobs([AddJob(draft("a"))], together=True)
    assert world.beat.changes() > before


def test_what_comes_in_is_claimed(beat: Handle, world: World) -> None:
    take_in(beat, [line("a", args=[1], next_run_time="2027-03-01T12:00:00Z")])
    claim = world.claim_one()
    assert (claim.job_name, list(claim.args), claim.slot.scheduled_for) == ("a", [1], NOON)


def test_what_goes_out_comes_in_the_same(beat: Handle, world: World) -> None:
    put = beat.jobs.put
    put("plain", task="app.task", schedule=90)
    put(
        "all",
        task="app.task",
        schedule="cron 0 3 * * mon",
        args=[1, "ü", None, {"deep": [1.5]}],
        kwargs={"k": "\u2028"},
        options={"queue": "slow", "priority": 3},
        start=NOON + HOUR,
        timezone="Europe/Berlin",
        max_retries=0,
        misfire="skip",
        lock_timeout=300,
    )
    put("paused", task="app.task", schedule="every 1h")
    beat.jobs.pause("paused", "not now")
    put("once", task="app.task", schedule=f"once {NOON:%Y-%m-%dT%H:%M:%S}Z")
    put("ran", task="app.task", schedule=60)
    world.later(60)
    for claim in world.claim().claims:
        world.publish(claim)
        run = world.start(claim)
        assert run is not None and world.finish(run)
    world.add("by-hand", Schedule=None, IntervalMinutes=7, LockTimeoutMinutes=3)
    lines = out(beat)
    assert len(lines) == 6
    other = handle_on(world.sibling())
    assert set(actions(take_in(other, lines)).values()) == {"add"}
    assert out(other) == lines
    assert set(actions(take_in(other, lines)).values()) == {"same"}
    once = other.jobs.get("once")
    assert once is not None and (once.enabled, once.disabled_reason, once.next_run_time) == (False, "finished", None)


def test_a_job_with_half_a_character_comes_in_the_same(beat: Handle, world: World) -> None:
    beat.jobs.put("a", task="app.task", schedule=60, args=["\ud800"])
    other = handle_on(world.sibling())
    lines = out(beat)
    take_in(other, lines)
    assert lines == out(other) and lines[0].isascii()


def test_what_ran_once_does_not_run_again_when_its_file_comes_again(beat: Handle, world: World) -> None:
    lines = [line("once", schedule=f"once {NOON:%Y-%m-%dT%H:%M:%S}Z")]
    take_in(beat, lines)
    world.finish(world.running())
    assert actions(take_in(beat, lines)) == {"once": "same"}
    assert world.claim().claims == []


def test_definitions_alone_begin_anew(beat: Handle, world: World) -> None:
    beat.jobs.put("a", task="app.task", schedule=60)
    world.later(3600)
    (only,) = out(beat, with_state=False)
    assert json.loads(only) == {"name": "a", "task": "app.task", "schedule": "every 1m"}


def test_a_job_that_is_there_keeps_its_state(beat: Handle, world: World) -> None:
    take_in(beat, [line("a", next_run_time="2027-03-01T13:00:00Z", last_run_time="2027-03-01T11:00:00Z")])
    steps = take_in(beat, [line("a", args=[2], next_run_time="2020-01-01T00:00:00Z")])
    assert actions(steps) == {"a": "change"}
    job = beat.jobs.get("a")
    assert job is not None and job.args == [2]
    assert (job.next_run_time, job.last_run_time) == (NOON + HOUR, NOON - HOUR)


def test_a_dry_run_writes_nothing_and_tells_the_same(beat: Handle, world: World) -> None:
    beat.jobs.put("b", task="app.task", schedule=60)
    lines = [line("a"), line("b", schedule=30), line("c", enabled=False)]
    before = out(beat)
    planned = take_in(beat, lines, dry_run=True)
    assert out(beat) == before
    done = take_in(beat, lines)
    assert actions(planned) == actions(done) == {"a": "add", "b": "change", "c": "add"}
    assert [step.next_run_time for step in planned] == [step.next_run_time for step in done]


def test_jobs_of_the_code_are_left_to_it(beat: Handle, world: World) -> None:
    world.add("mine", CodeOwner="shop", CodeRelease="1", TimeZone="UTC")
    assert list(export_lines(beat.store, beat.rules)) == [None]
    (step,) = take_in(beat, [line("mine")])
    assert step.action == "left" and "the beat_schedule of shop defines it" in step.remarks[0]


def test_a_job_that_cannot_run_is_named_and_stops_no_other(beat: Handle, world: World) -> None:
    world.add("bad", Args="[1,")
    world.add("good")
    bad, good = export_lines(beat.store, beat.rules)
    assert isinstance(bad, LeftOut) and bad.name == "bad" and "Args" in bad.reason
    assert json.loads(str(good))["name"] == "good"


@pytest.mark.parametrize(
    ("columns", "hint"),
    [({"Policies": '{"max_retries": null}'}, "a line cannot say null"), ({"JobName": " a"}, "no blank at its ends")],
)
def test_what_no_line_can_say_is_named(world: World, columns: dict[str, str], hint: str) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(timezone="UTC", sqlbeat_policies={"*": {"max_retries": 7}})
    beat = Handle(app, read_settings({**app.conf, "sqlbeat_namespace": world.namespace}, {}), world.store)
    world.add(**{"name": "a", **{key: value for key, value in columns.items() if key != "JobName"}})
    if "JobName" in columns:
        world.change("a", **columns)
    (left,) = export_lines(beat.store, beat.rules)
    assert isinstance(left, LeftOut) and hint in left.reason


def test_a_job_in_quarantine_is_put_right(beat: Handle, world: World) -> None:
    world.add("a", Schedule="evry 5m", Quarantine="why")
    assert actions(take_in(beat, [line("a")])) == {"a": "change"}
    job = beat.jobs.get("a")
    assert job is not None and (job.quarantine, job.schedule) == (None, "every 1m")


def test_who_changes_the_same_jobs_meanwhile_is_seen(
    beat: Handle, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the write another program adds one of the jobs.

    The batch is planned anew.
    """
    read = SqlStore.jobs
    added: list[set[str]] = []

    def look(admin: Any, names: Any) -> Any:
        found = read(admin, names)
        if not added:
            added.append(world.write(AddJob(draft("a", schedule="every 60s"))))
        return found

    monkeypatch.setattr(SqlStore, "jobs", look)
    steps = take_in(beat, [line("a", args=[1]), line("b")])
    assert added == [{"a"}]
    assert actions(steps) == {"a": "change", "b": "add"}


def test_more_than_a_batch_comes_in(beat: Handle, world: World) -> None:
    lines = [line(f"job-{number:04}") for number in range(BATCH + 3)]
    assert len(take_in(beat, lines)) == BATCH + 3
    assert len(out(beat)) == BATCH + 3

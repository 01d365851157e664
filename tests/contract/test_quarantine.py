"""Rows that people wrote wrongly: each is set aside with its reason, and disturbs no other."""

import logging
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_sqlbeat.store.records import JobQuery
from tests.support.world import NOON, World

WRONG = [
    ({"Schedule": "every now and then"}, "Schedule"),
    ({"Schedule": "cron 0 0 31 2 *"}, "Schedule"),
    ({"Schedule": ""}, "Schedule"),
    ({"Schedule": None, "IntervalMinutes": -5}, "IntervalMinutes"),
    ({"Schedule": None, "IntervalMinutes": 0}, "IntervalMinutes"),
    ({"TimeZone": "Mars/Olympus"}, "TimeZone"),
    ({"TimeZone": "../../etc/passwd"}, "TimeZone"),
    ({"Args": "[1, 2"}, "Args"),
    ({"Args": '{"a": 1}'}, "Args"),
    ({"Args": "[NaN]"}, "Args"),
    ({"Kwargs": "[1]"}, "Kwargs"),
    ({"Kwargs": "[" * 100_000}, "Kwargs"),
    ({"Options": '"queue"'}, "Options"),
    ({"Options": '{"queue": 5}'}, "Options.queue"),
    ({"Options": '{"countdown": "x"}'}, "Options.countdown"),
    ({"Options": '{"countdown": -1}'}, "Options.countdown"),
    ({"Options": '{"expires": "banana"}'}, "Options.expires"),
    ({"Options": '{"eta": 12}'}, "Options.eta"),
    ({"Options": '{"priority": "high"}'}, "Options.priority"),
    ({"Options": '{"headers": [1]}'}, "Options.headers"),
    ({"Policies": '{"cadence": "sometimes"}'}, "Policies.cadence"),
    ({"Policies": "cadence=fixed_rate"}, "Policies"),
    ({"LockTimeoutMinutes": -1}, "LockTimeoutMinutes"),
    ({"TaskName": None}, "TaskName"),
    ({"TaskName": ""}, "TaskName"),
]


@pytest.mark.parametrize(("columns", "field"), WRONG, ids=[f"{field}-{n}" for n, (_, field) in enumerate(WRONG)])
def test_a_wrong_row_goes_to_quarantine_with_its_reason_and_the_others_run(
    world: World, columns: dict[str, Any], field: str
) -> None:
    wrong, right = world.add(**columns), world.add()
    claimed = world.claim()
    assert [claim.job_name for claim in claimed.claims] == [right]
    reason = world.job(wrong)["quarantine"]
    assert reason.startswith(f"{field} = ") and ": " in reason and len(reason) <= 500
    assert world.job(wrong)["lockedby"] is None
    assert world.runs(wrong) == []


@pytest.mark.parametrize("fence", [2**63 - 1, 2**62, -1])
def test_a_fence_that_cannot_grow_stops_no_other_job(world: World, fence: int) -> None:
    wrong, right = world.add(), world.add()
    world.sql("UPDATE Jobs SET Fence = ? WHERE JobName = ?", fence, wrong)
    assert [claim.job_name for claim in world.claim().claims] == [right]
    assert world.job(wrong)["quarantine"].startswith("Fence")


@pytest.mark.parametrize(
    "options",
    [
        '{"queue": "q", "priority": 3, "countdown": 0.5, "expires": 60, "headers": {"a": 1}}',
        '{"expires": "2027-03-02T00:00:00Z", "eta": "2027-03-01T13:00:00+01:00", "routing_key": "", "retry": false}',
        '{"queue": null, "link": {"task": "app.next"}, "anything": [1, 2]}',
    ],
)
def test_options_that_celery_takes_are_taken(world: World, options: str) -> None:
    name = world.add(Options=options)
    assert world.claim_one().job_name == name


def test_a_row_in_quarantine_is_not_looked_at_again_by_a_claim(world: World) -> None:
    world.add(Args="nonsense")
    assert world.claim().jobs_read == 1
    assert world.claim().jobs_read == 0


def test_a_row_that_was_corrected_leaves_quarantine_by_itself(world: World) -> None:
    name = world.add(Args="nonsense")
    world.claim()
    mend_all(world)
    assert world.job(name)["quarantine"] is not None
    world.sql("UPDATE Jobs SET Args = '[]' WHERE JobName = ?", name)
    mend_all(world)
    assert world.job(name)["quarantine"] is None
    assert world.claim_one().job_name == name


def test_another_mistake_is_another_reason(world: World) -> None:
    name = world.add(Args="nonsense")
    world.claim()
    world.sql("UPDATE Jobs SET Args = NULL, Kwargs = '[]' WHERE JobName = ?", name)
    assert mend_all(world) == [name]
    assert world.job(name)["quarantine"].startswith("Kwargs")
    assert mend_all(world) == []


def test_what_was_written_is_kept_for_whoever_corrects_it(world: World) -> None:
    name = world.add(Args="nonsense")
    world.claim()
    mend_all(world)
    assert world.job(name)["args"] == "nonsense"


def test_a_row_without_a_next_run_is_filled_like_a_new_job(world: World) -> None:
    every = world.add(NextRunTime=None, Schedule="every 10m")
    cron = world.add(NextRunTime=None, Schedule="cron 30 12 * * *")
    default = world.add(NextRunTime=None, Schedule=None)
    started = world.add(NextRunTime=None, Schedule="every 1h", StartAt=NOON + timedelta(minutes=7))
    assert world.beat.next_deadlines().due_at is None
    mend_all(world)
    world.at(NOON + timedelta(minutes=30))
    claims = {claim.job_name: claim.slot.scheduled_for for claim in world.claim().claims}
    assert claims == {
        every: NOON + timedelta(minutes=30),
        cron: NOON + timedelta(minutes=30),
        default: NOON + timedelta(minutes=30),
        started: NOON + timedelta(minutes=7),
    }


def test_a_row_with_the_missions_columns_and_a_task_is_a_working_job(world: World) -> None:
    world.sql("INSERT INTO Jobs (Namespace, JobName, TaskName) VALUES (?, 'by hand', 'app.task')", world.namespace)
    mend_all(world)
    world.later(600)
    claim = world.claim_one()
    assert (claim.job_name, claim.slot.scheduled_for) == ("by hand", NOON + timedelta(minutes=10))


def test_a_schedule_that_never_comes_is_said_so(world: World) -> None:
    name = world.add(NextRunTime=None, Schedule="solar sunrise 89.99 0")
    mend_all(world)
    job = world.job(name)
    assert job["quarantine"] is not None or job["nextruntime"] is not None


def test_a_disabled_row_needs_no_next_run(world: World) -> None:
    name = world.add(NextRunTime=None, Enabled=0)
    mend_all(world)
    assert world.job(name)["nextruntime"] is None


def test_instants_in_other_forms_are_normalised_on_sqlite(world: World) -> None:
    if world.store.database.dialect.name != "sqlite":
        pytest.skip("only SQLite keeps instants as text")
    forms = ["2027-03-01T11:00:00Z", "2027-03-01 11:00:00", "2027-03-01T12:00:00+01:00", "2027-03-01 11:00"]
    names = [world.add(NextRunTime=form) for form in forms]
    mend_all(world)
    assert {world.job(name)["nextruntime"] for name in names} == {"2027-03-01 11:00:00.000000"}
    assert len(world.claim().claims) == len(forms)


@pytest.mark.parametrize(
    "form",
    [
        "tomorrow",
        "1772366400",
        "2027-02-30 00:00:00.000000",
        "2027-13-01 00:00:00.000000",
        "2030-19-39 29:00:00.000000",
        "2027-13-01T00:00:00Z",
        "01/03/2027 11:00",
        "",
    ],
)
def test_an_instant_that_nobody_can_read_is_quarantined_on_sqlite(world: World, form: str) -> None:
    if world.store.database.dialect.name != "sqlite":
        pytest.skip("the other databases refuse to store it")
    name, right = world.add(NextRunTime=form), world.add()
    mend_all(world)
    assert [claim.job_name for claim in world.claim().claims] == [right]
    assert world.job(name)["quarantine"].startswith("NextRunTime = ")
    assert world.job(name)["nextruntime"] == form


def test_a_fence_that_is_no_number_is_quarantined_once_and_skips_nothing_on_sqlite(world: World) -> None:
    if world.store.database.dialect.name != "sqlite":
        pytest.skip("the other databases refuse to store it")
    name, right = world.add(Fence="abc", NextRunTime=NOON - timedelta(days=1)), world.add()
    assert [claim.job_name for claim in world.claim().claims] == [right]
    assert world.job(name)["quarantine"].startswith("Fence = 'abc'")
    assert world.runs(name) == []
    assert mend_all(world) == []
    assert world.job(name)["quarantine"] is not None


def test_a_lock_whose_instant_nobody_can_read_is_freed_on_sqlite(world: World) -> None:
    if world.store.database.dialect.name != "sqlite":
        pytest.skip("the other databases refuse to store it")
    name = world.add(LockedBy="somebody", LockedAt="yesterday")
    assert world.beat.release_orphan_locks(60) == []
    assert world.instant(name, "lockedat") == NOON
    world.later(60)
    assert world.beat.release_orphan_locks(60) == [name]
    assert world.claim_one().job_name == name


def test_an_instant_beyond_pythons_calendar_stops_no_other_row_on_postgresql(world: World) -> None:
    if world.store.database.dialect.name != "postgresql":
        pytest.skip("the other databases have no such instants")
    row = world.add(NextRunTime=None)
    locked, other = world.add(LockedBy="somebody"), world.add(NextRunTime=None)
    world.sql("UPDATE Jobs SET CreatedAt = 'infinity' WHERE JobName = ?", row)
    world.sql("UPDATE Jobs SET LockedAt = 'infinity', UpdatedAt = '0044-03-15 BC' WHERE JobName = ?", locked)
    mend_all(world)
    found = world.admin.jobs(JobQuery(names=[row, locked, other]))
    assert found[row].next_run_time == found[other].next_run_time == NOON + timedelta(seconds=60)
    assert found[locked].locked_at == datetime.max.replace(tzinfo=timezone.utc)


def test_bytes_that_are_no_text_stop_no_other_row_on_sqlite(world: World) -> None:
    if world.store.database.dialect.name != "sqlite":
        pytest.skip("the other databases refuse to store it")
    name, right = world.add(), world.add()
    world.sql("UPDATE Jobs SET Args = CAST(x'5b22ff' AS TEXT) WHERE JobName = ?", name)
    assert [claim.job_name for claim in world.claim().claims] == [right]
    world.sql("UPDATE Jobs SET Args = NULL WHERE JobName = ?", name)
    assert world.job(name)["quarantine"].startswith("Args")


def test_a_failure_that_nobody_foresaw_is_quarantined_too(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in the planning of one row must not stop the others, and must not stay hidden."""
    from celery_sqlbeat import planning
    from celery_sqlbeat.model import definition

    bad, right = world.add(TaskName="app.bad"), world.add()
    read = definition.read_definition

    def read_or_break(row: Any, rules: Any) -> Any:
        if row.task_name == "app.bad":
            raise ZeroDivisionError
        return read(row, rules)

    monkeypatch.setattr(planning, "read_definition", read_or_break)
    with caplog.at_level(logging.WARNING):
        assert [claim.job_name for claim in world.claim().claims] == [right]
    assert "ZeroDivisionError" in world.job(bad)["quarantine"]
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()
    mend_all(world)
    assert caplog.text == ""


def test_what_was_planned_for_a_row_before_it_failed_is_not_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_sqlbeat.model import Claim

    bad, right = world.add("bad", NextRunTime=NOON - timedelta(days=1)), world.add("right")

    def claim_or_break(**facts: Any) -> Claim:
        if facts["job_name"] == bad:
            raise ZeroDivisionError
        return Claim(**facts)

    monkeypatch.setattr("celery_sqlbeat.planning.Claim", claim_or_break)
    assert [claim.job_name for claim in world.claim().claims] == [right]
    assert "ZeroDivisionError" in world.job(bad)["quarantine"]
    assert world.runs(bad) == []


def mend_all(world: World) -> list[str]:
    """Return what a beat does with loose rows at every poll; returns the names newly set aside."""
    mends, quarantines = world.planner.repairs(world.beat.rows_needing_repair(100))
    world.beat.repair_rows(mends, quarantines)
    return [quarantine.job_name for quarantine in quarantines]

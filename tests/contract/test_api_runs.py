"""The Python handle on a real database.

The history is read, dead letters are replayed and purged.
"""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat.api import Handle
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import FieldError, NoSuchJob, NoSuchRun
from celery_sqlbeat.model import Node, RunRecord
from celery_sqlbeat.model.lifecycle import DLQ, Ending
from celery_sqlbeat.store.records import RunQuery
from celery_sqlbeat.store.sql.store import SqlStore
from tests.support.views import NodeView
from tests.support.world import NOON, World


@pytest.fixture
def beat(world: World) -> Handle:
    app = Celery("shop", broker="memory://", set_as_current=False)
    return Handle(app, read_settings({"sqlbeat_namespace": world.namespace}, {}), world.store)


def dead_letter(world: World, name: str | None = None) -> str:
    name = world.add(name, NextRunTime=world.now)
    world.finish(world.running(), Ending(DLQ, "retries exhausted", None, 1, 0, "ValueError: no", "Traceback ..."))
    world.change(name, NextRunTime=NOON + timedelta(days=30))
    return name


def test_a_run_tells_its_story(beat: Handle, world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(5)
    world.finish(run)
    (found,) = beat.runs.list(name)
    assert found == beat.runs.get(run.run_id)
    assert (found.job_name, found.kind, found.state, found.attempt) == (name, "schedule", "success", 1)
    assert (found.claimed_by, found.started_by, found.seconds) == ("beat-1", "worker-1", 5.0)
    assert (found.scheduled_for, found.claimed_at, found.slots, found.error) == (NOON, NOON, 1, None)


def test_runs_are_read_newest_first_and_no_more_than_asked(
    beat: Handle, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_sqlbeat.api.runs.PAGE", 2)
    name = world.add()
    for at in range(5):
        world.finish(world.running(), Ending(DLQ, "x", None, 1) if at == 1 else None)
        world.later(60)
    slots = [NOON + timedelta(minutes=at) for at in (4, 3, 2, 1, 0)]
    assert [run.scheduled_for for run in beat.runs.list(name)] == slots
    assert [run.scheduled_for for run in beat.runs.list(name, limit=3)] == slots[:3]
    assert [run.scheduled_for for run in beat.runs.list(name, state="dlq")] == [slots[3]]
    assert len(beat.runs.list()) == 5
    assert len(beat.runs.list(limit=1)) == 1
    assert beat.runs.list(limit=0) == []


def test_the_history_of_a_job_that_is_gone_stays(beat: Handle, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    name, other = world.add(), world.add(NextRunTime=NOON + timedelta(days=1))
    for _ in range(2):
        world.finish(world.running())
        world.later(60)
    before = beat.runs.list(name)
    assert beat.jobs.delete(name) and beat.jobs.get(name) is None
    assert beat.runs.list(name) == before and len(before) == 2
    assert beat.runs.list(name, limit=1) == before[:1]
    assert beat.runs.list(other) == []
    with pytest.raises(NoSuchJob):
        beat.runs.list("mistyped")
    monkeypatch.setattr("celery_sqlbeat.api.runs.NEWEST", 0)
    with pytest.raises(NoSuchJob):
        beat.runs.list(name)


def test_runs_in_one_state_are_found_without_reading_the_others(
    beat: Handle, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_sqlbeat.api.runs._SCAN", 4)
    read = SqlStore.runs
    pages: list[list[str]] = []

    def seen(admin: SqlStore, query: RunQuery) -> list[RunRecord]:
        found = read(admin, query)
        pages.append([row.state for row in found])
        return found

    world.add()
    for at in range(10):
        world.finish(world.running(), Ending(DLQ, "x", None, 1) if at in (2, 3, 8) else None)
        world.later(60)
    every = [run.id for run in beat.runs.list()]
    monkeypatch.setattr(SqlStore, "runs", seen)
    assert [run.id for run in beat.runs.list(state="dlq")] == [every[1], every[6], every[7]]
    assert pages == [["dlq", "success"], ["dlq", "dlq"], ["success"], []], "four, four and two runs were looked at"
    assert [run.id for run in beat.runs.list(state="dlq", limit=1)] == [every[1]]
    assert len(pages) == 5
    assert [run.id for run in beat.runs.list(state="success", limit=None)] == [
        run_id for run_id in every if run_id not in (every[1], every[6], every[7])
    ]
    assert beat.runs.list(state="cancelled") == []


@pytest.mark.parametrize("wrong", ["", "nonsense", "00000000-0000-0000-0000-000000000000", "x" * 1000, "{0}"])
def test_what_is_no_run_is_none(beat: Handle, wrong: str) -> None:
    assert beat.runs.get(wrong) is None
    with pytest.raises(NoSuchRun):
        beat.dead.replay(wrong)
    with pytest.raises(NoSuchRun):
        beat.dead.purge([wrong])


def test_an_id_may_be_a_uuid(beat: Handle, world: World) -> None:
    dead_letter(world)
    (letter,) = beat.dead.list()
    assert beat.runs.get(uuid.UUID(letter.id)) == letter
    (replayed,) = beat.dead.replay(uuid.UUID(letter.id))
    assert replayed.attempt == letter.attempt + 1
    assert beat.dead.purge([uuid.UUID(letter.id)]) == 1


@pytest.mark.parametrize("limit", [-1, True, 1.5, "all"])
def test_a_wrong_limit_or_state_is_refused(beat: Handle, limit: Any) -> None:
    with pytest.raises(FieldError, match=r"limit = .*: write a whole number"):
        beat.runs.list(limit=limit)
    with pytest.raises(FieldError, match=r"limit = .*: write a whole number"):
        beat.dead.list(limit=limit)
    with pytest.raises(FieldError, match=r"state = 'succeeded': write one of .*success"):
        beat.runs.list(state="succeeded")
    assert beat.runs.list(limit=None) == []


def test_a_dead_letter_is_replayed_once_under_a_new_id(beat: Handle, world: World) -> None:
    name = dead_letter(world)
    (letter,) = beat.dead.list()
    assert (letter.job_name, letter.error, letter.traceback) == (name, "ValueError: no", "Traceback ...")
    (again,) = beat.dead.replay(letter)
    assert again.id != letter.id
    assert (again.job_name, again.scheduled_for, again.attempt, again.state) == (
        name,
        letter.scheduled_for,
        2,
        "scheduled",
    )
    assert beat.dead.replay(letter.id) == []
    assert beat.dead.list()[0].reason == "replayed"
    world.finish(world.running())
    assert world.states(name) == ["dlq", "success"]


def test_who_replays_is_told_which_letters_were_skipped_and_why(beat: Handle, world: World) -> None:
    def skipped() -> list[str]:
        told: list[str] = []
        beat.dead.replay(skipped=lambda run, why: told.append(f"{run.attempt}: {why}"))
        return told

    name = dead_letter(world, "twice")
    world.change(name, NextRunTime=beat.dead.list()[0].scheduled_for)
    world.finish(world.running(), Ending(DLQ, "retries exhausted", None, 1))
    assert skipped() == ["1: attempt 3 of its slot is scheduled"]
    world.finish(world.running())
    assert skipped() == ["1: attempt 3 of its slot came later: success"]
    beat.jobs.delete(name)
    dead_letter(world, "gone")
    beat.jobs.delete("gone")
    assert skipped() == ["1: attempt 3 of its slot came later: success", "1: its job is gone"]


def test_a_letter_whose_job_is_gone_stays_as_it_is(beat: Handle, world: World) -> None:
    name = dead_letter(world)
    beat.jobs.delete(name)
    assert beat.dead.replay() == []
    (letter,) = beat.dead.list()
    assert letter.reason == "retries exhausted"


def test_all_letters_of_a_job_are_replayed(beat: Handle, world: World) -> None:
    dead_letter(world, "a")
    dead_letter(world, "b")
    assert [run.job_name for run in beat.dead.replay(job="b")] == ["b"]
    assert [run.job_name for run in beat.dead.replay()] == ["a"]
    assert [letter.job_name for letter in beat.dead.list("b")] == ["b"]
    assert len(beat.dead.list(limit=1)) == 1


def test_letters_are_purged_by_name_by_job_by_age_or_all(beat: Handle, world: World) -> None:
    for name in "abc":
        dead_letter(world, name)
        world.later(3600)
    first, *_ = beat.dead.list()
    assert beat.dead.purge([]) == 0
    assert beat.dead.purge(first) == 1
    assert beat.dead.purge(job="b", older_than=timedelta(hours=3)) == 0
    assert beat.dead.purge(older_than=timedelta(hours=1, minutes=30)) == 1
    assert [letter.job_name for letter in beat.dead.list()] == ["c"]
    with pytest.raises(FieldError, match="older_than"):
        beat.dead.purge(older_than=-1)
    assert beat.dead.purge() == 1
    assert beat.dead.list() == []


def test_nothing_is_purged_where_one_of_the_names_is_wrong(beat: Handle, world: World) -> None:
    dead_letter(world)
    (letter,) = beat.dead.list()
    with pytest.raises(NoSuchRun):
        beat.dead.purge([letter, "nonsense"])
    assert beat.dead.list() == [letter]


def test_long_work_says_how_far_it_is(beat: Handle, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sqlbeat.api.runs.BATCH", 2)
    for name in "abc":
        dead_letter(world, name)
    steps: list[int] = []
    assert beat.dead.purge(progress=steps.append) == 3
    assert steps == [2, 1]


def test_the_status_counts_what_there_is(beat: Handle, world: World) -> None:
    later = NOON + timedelta(hours=1)
    world.add("waits", NextRunTime=later)
    world.add("paused", NextRunTime=later, Enabled=0)
    world.add("broken", Args="nonsense")
    world.add("runs")
    world.running()
    world.add("due", NextRunTime=NOON - timedelta(seconds=42))
    nodes = NodeView(world.store)
    nodes.heartbeat(Node("beat@a/1", "beat", "a", 1, "0.1", "r1", claimed=3, skew_seconds=0.25))
    nodes.heartbeat(Node("worker@a/2", "worker", "a", 2, "0.1", queues='["celery", "slow", ["left", 9.5]]'))
    nodes.heartbeat(Node("worker@b/3", "worker", "b", 3, "0.1"))
    nodes.heartbeat(Node("worker@b/3", "worker", "b", 3, "0.1", is_stopped=True))
    found = beat.status()
    assert found.jobs == {"total": 5, "active": 4, "held": 1, "retrying": 0, "set_aside": 1, "due": 1}
    assert (found.lag_seconds, found.dead_letters, found.last_hour) == (42.0, 0, {"running": 1})
    assert found.now == NOON
    states = {each.id: (each.state, each.queues) for each in found.processes}
    assert states == {
        "beat@a/1": ("alive", ()),
        "worker@a/2": ("alive", ("celery", "slow")),
        "worker@b/3": ("stopped", ()),
    }
    assert [each.id for each in found.alive("beat")] == ["beat@a/1"]
    world.later(100)
    assert {each.state for each in beat.status().processes if each.kind == "worker"} == {"silent", "stopped"}
    assert [each.state for each in beat.status().processes if each.kind == "beat"] == ["alive"]


def test_the_status_of_an_empty_namespace_is_empty(beat: Handle) -> None:
    found = beat.status()
    assert set(found.jobs.values()) == {0}
    assert (found.lag_seconds, found.dead_letters, found.last_hour, found.processes) == (0.0, 0, {}, ())


def test_what_failed_for_good_is_replayed_after_its_schedule_has_ended(beat: Handle, world: World) -> None:
    name = world.add(Schedule="once 2027-03-01T12:00:00Z")
    world.finish(world.running(), Ending(DLQ, "retries exhausted", None, 1))
    assert beat.jobs.get(name).disabled_reason == "finished"  # type: ignore[union-attr]  # it is there
    beat.dead.replay()
    assert world.beat.next_deadlines().outbox_at == world.now
    world.finish(world.running())
    assert world.states(name) == ["dlq", "success"]
    beat.jobs.run_now(name)
    world.finish(world.running())
    job = beat.jobs.get(name)
    assert job is not None and (job.enabled, job.disabled_reason) == (False, "finished")
    assert world.claim().claims == []


def test_what_failed_for_good_waits_while_its_job_is_paused(beat: Handle, world: World) -> None:
    name = dead_letter(world)
    beat.jobs.pause(name)
    beat.dead.replay()
    assert world.claim().claims == []
    assert world.beat.next_deadlines().outbox_at is None
    beat.jobs.resume(name)
    assert world.claim_one().slot.attempt == 2

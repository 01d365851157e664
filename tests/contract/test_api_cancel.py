"""`beat.runs.cancel`: what it returns, whom it tells, and what it refuses."""

from collections.abc import Sequence
from typing import Any

import pytest
from celery import Celery, states

from celery_sqlbeat.api import Handle
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import FieldError, NoSuchJob, NoSuchRun, RunHasEnded
from celery_sqlbeat.model.lifecycle import Ending
from tests.support.world import World


@pytest.fixture
def app() -> Celery:
    return Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)


def state_of(app: Celery, run_id: str) -> str:
    """Return the state of a result, of which the stubs know no REVOKED."""
    return str(app.AsyncResult(run_id).state)


@pytest.fixture
def recalled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    heard: list[str] = []

    def recall(_app: Any, run_ids: Sequence[str]) -> None:
        heard.extend(run_ids)

    monkeypatch.setattr("celery_sqlbeat.api.cancel.recall", recall)
    return heard


@pytest.fixture
def beat(world: World, app: Celery) -> Handle:
    return Handle(app, read_settings({"sqlbeat_namespace": world.namespace}, {}), world.store)


def test_what_has_not_begun_has_ended_and_its_result_is_revoked(
    beat: Handle, world: World, app: Celery, recalled: list[str]
) -> None:
    world.add()
    claim = world.claim_one()
    run = beat.runs.cancel(claim.run_id, "wrong data", by="ann")
    assert run.state == "cancelled" and str(run.reason).startswith("cancelled by ann at ")
    assert state_of(app, claim.run_id) == states.REVOKED and recalled == []
    assert beat.runs.cancel(claim.run_id, "once more").reason == run.reason


def test_workers_are_asked_to_look_at_once_at_what_runs(
    beat: Handle, world: World, app: Celery, recalled: list[str]
) -> None:
    world.add()
    started = world.running()
    run = beat.runs.cancel(started.run_id)
    assert run.state == "running" and recalled == [started.run_id]
    assert state_of(app, started.run_id) == states.PENDING


def test_who_asks_is_the_user_of_this_process(beat: Handle, world: World) -> None:
    world.add()
    run = beat.runs.cancel(world.claim_one().run_id)
    assert "@" in str(run.reason)


def test_what_has_ended_or_is_not_known_says_so(beat: Handle, world: World) -> None:
    world.add()
    started = world.running()
    world.finish(started)
    with pytest.raises(RunHasEnded, match=f"run {started.run_id} has ended as success"):
        beat.runs.cancel(started.run_id)
    for unknown in (world.ids.random_id(), "no id"):
        with pytest.raises(NoSuchRun):
            beat.runs.cancel(unknown)


@pytest.mark.parametrize("reason", ["a\0b", "x" * 201, 7])
def test_a_reason_that_cannot_be_kept_is_refused_and_nothing_is_written(
    beat: Handle, world: World, reason: Any
) -> None:
    world.add()
    claim = world.claim_one()
    with pytest.raises(FieldError, match="reason"):
        beat.runs.cancel(claim.run_id, reason)
    assert world.states(claim.job_name) == ["claimed"]


def test_all_runs_of_a_job_that_go_on_or_wait_are_cancelled(beat: Handle, world: World) -> None:
    name = world.add()
    world.finish(world.running(), Ending("retry", "failed", 60.0, 1))
    beat.jobs.run_now(name)
    other = world.add()
    assert len(world.claim().claims) == 2
    cancelled = beat.runs.cancel_all(name, "month end")
    assert [run.state for run in cancelled] == ["cancelled", "cancelled"]
    assert world.states(other) == ["claimed"]
    assert beat.runs.cancel_all(name) == []
    with pytest.raises(NoSuchJob):
        beat.runs.cancel_all("nobody")

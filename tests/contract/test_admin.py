"""What an administrator does: define, pause, run now, delete, look back, replay, purge."""

from datetime import timedelta
from typing import Any, cast

import pytest

from celery_sqlbeat.model import (
    DeleteJob,
    NewRun,
    PauseJob,
)
from celery_sqlbeat.model.lifecycle import DLQ, Ending
from celery_sqlbeat.store.purges import DeadLetters, OldRuns
from celery_sqlbeat.store.records import JobQuery, RunQuery
from tests.contract.conftest import Place
from tests.support.views import AdminView
from tests.support.world import NOON, World


def dead_letter(world: World) -> str:
    name = world.add()
    run = world.running()
    world.finish(run, Ending(DLQ, "retries exhausted", None, 1, 0, "ValueError: no", "Traceback ..."))
    return name


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


def test_two_namespaces_see_nothing_of_each_other(world: World) -> None:
    name = dead_letter(world)
    run = world.letters()[0]
    from celery_sqlbeat.store.sql.store import SqlStore

    other = AdminView(SqlStore(world.store.database, world.namespace + "-other"))
    assert (other.jobs(JobQuery(names=[name])), other.jobs(JobQuery())) == ({}, {})
    assert (other.runs(RunQuery()), other.runs(RunQuery(only_dead=True))) == ([], [])
    assert other.runs(RunQuery(run_ids=[run.run_id])) == []
    assert other.enqueue([NewRun(world.ids.run_ids(1)[0], run.job_id, run)]) == set()
    assert other.purge(DeadLetters([run.run_id])).rows == 0
    assert not other.write_jobs([DeleteJob(name)]).done
    assert not other.write_jobs([PauseJob(name, "x")]).done
    assert not other.enqueue([NewRun(world.ids.run_ids(1)[0], run.job_id)])
    assert other.purge(OldRuns(0, limit=100)).rows == 0

"""One-offs in the tables: beside older releases, rows that are refused, and hands that edit."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from celery_sqlbeat.errors import RowRefused
from celery_sqlbeat.model.one_offs import IdempotencyKey, OneOff, Submitted
from celery_sqlbeat.store.records import RunQuery
from tests.contract.test_refused_rows import refusing
from tests.support.world import DISPATCH, LEASE, World

OLD_BEAT = {"code_owner": "shop", "code_keys": ["abc"], "other_entries": [], "queued_seconds": LEASE}
OLD_DUE = {**OLD_BEAT, "batch_size": 10, "share": "0123456789abcdef", "besides": []}


def one_off(world: World, **fields: Any) -> OneOff:
    return OneOff(world.ids.run_ids(1)[0], "app.once", "[1]", None, None, None)._replace(**fields)


def submit(world: World, *one_offs: OneOff) -> Mapping[str, Submitted]:
    return world.store.submit(one_offs, "submitter", DISPATCH)


def known(world: World) -> set[str]:
    return {run.run_id for run in world.store.runs(RunQuery(one_offs=True))}


def kept(world: World, table: str) -> int:
    [row] = world.sql(f"SELECT count(*) AS amount FROM {table} WHERE Namespace = ?", world.namespace)
    return int(row["amount"])


def test_a_beat_of_a_release_that_does_not_know_one_offs_does_not_see_them(world: World) -> None:
    """It would set them aside, as their schedule is none to it."""
    submit(world, one_off(world))
    assert world.store.database.read("read_due", namespace=world.namespace, **OLD_DUE) == []
    assert world.store.database.read("read_outbox", namespace=world.namespace, **OLD_DUE) == []
    scope = {key: OLD_BEAT[key] for key in ("code_owner", "code_keys", "other_entries")}
    assert world.store.database.read("read_next", namespace=world.namespace, **scope)[0][1] is None
    assert len(world.claim().claims) == 1


def test_a_one_off_that_is_refused_is_told_and_the_others_are_added(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    key = IdempotencyKey("order", "digest", 60.0)
    batch = [one_off(world) for _ in range(7)]
    batch[3] = batch[3]._replace(task_name="app.bad", key=key)
    with refusing(world, "app.bad", event="INSERT ON Jobs", column="TaskName"):
        with caplog.at_level(logging.ERROR):
            answers = submit(world, *batch)
        assert answers.keys() == known(world) == {one.run_id for one in batch} - {batch[3].run_id}
        assert batch[3].run_id in caplog.text and "the shop says no" in caplog.text
        assert kept(world, "IdempotencyKeys") == 0
        with pytest.raises(RowRefused, match="the shop says no"):
            submit(world, batch[3])
    assert submit(world, batch[3])[batch[3].run_id].is_new


def test_the_id_of_a_jobs_run_is_not_taken(world: World) -> None:
    world.add()
    [claim] = world.claim().claims
    assert submit(world, one_off(world, run_id=claim.run_id)) == {}
    assert kept(world, "Jobs") == 1 and known(world) == set()


def test_whoever_deletes_its_history_deletes_the_one_off(world: World) -> None:
    gone, stays = one_off(world), one_off(world)
    submit(world, gone, stays)
    world.sql("DELETE FROM JobRuns WHERE RunId = ?", gone.run_id)
    assert known(world) == {stays.run_id} and kept(world, "Jobs") == 1
    [claim] = world.claim().claims
    assert claim.run_id == stays.run_id


def test_no_name_of_a_one_off_is_remembered(world: World) -> None:
    held = one_off(world, claim_id=world.ids.claim_ids(1)[0])
    submit(world, held)
    world.sql("DELETE FROM Jobs WHERE Namespace = ?", world.namespace)
    assert kept(world, "DeletedJobs") == 0

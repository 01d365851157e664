"""One-offs in rows: what waits costs a beat nothing, and what comes between is compared."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import NewRun
from celery_sqlbeat.model.lifecycle import Ending
from celery_sqlbeat.model.one_offs import IdempotencyKey, OneOff
from celery_sqlbeat.store.keyvalue.rows import Change, Key, Place, Scan, Snapshot
from celery_sqlbeat.store.keyvalue.store import KeyValueStore
from celery_sqlbeat.store.purges import DeadLetters, OldKeys, OldRuns
from celery_sqlbeat.store.records import RunQuery
from tests.unit.store.keyvalue.steps import DISPATCH, LEASE, NOON, Interrupted, Steps, release


def one_offs(steps: Steps, count: int = 1, **fields: Any) -> list[OneOff]:
    plain = OneOff("", "app.once", None, None, None, None, NOON + timedelta(days=21))
    return [plain._replace(run_id=run_id, **fields) for run_id in steps.ids.run_ids(count)]


class Counted:
    """A place that counts what its readers and writers cost it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.reads = self.writes = self.rows = 0

    def read(self, keys: Sequence[Key] = (), scans: Sequence[Scan] = ()) -> Snapshot:
        snapshot = self.place.read(keys, scans)
        self.reads += 1
        self.rows += len(keys) + sum(len(found.ids) for found in snapshot.scanned)
        return snapshot

    def write(self, changes: Sequence[Change]) -> list[bool]:
        self.writes += 1
        return self.place.write(changes)

    def forget(self) -> None:
        self.place.forget()

    def close(self) -> None:
        self.place.close()


def read_by_a_beat(waiting: int) -> int:
    """Return how many rows and ids a beat reads in its round while so many one-offs wait."""
    steps = Steps()
    steps.add()
    steps.store.submit(one_offs(steps, waiting), "submitter", DISPATCH)
    counted = Counted(steps.place)
    store = KeyValueStore(counted)
    store.pulse()
    store.next_deadlines()
    store.claim(store.due(100), steps.planner(store.due(100)), "beat", DISPATCH)
    store.expired(100)
    store.counts(3600.0)
    store.running(0.0, 100)
    store.release_orphan_locks(LEASE)
    store.unended_results(100, 3600.0)
    store.purge(OldRuns(0.0))
    store.purge(OldKeys())
    return counted.rows


def test_what_a_beat_reads_does_not_grow_with_the_one_offs_that_wait() -> None:
    assert read_by_a_beat(200) == read_by_a_beat(2000)  # a batch of 100 is looked at


def test_submitting_many_takes_two_round_trips_for_each_250() -> None:
    steps = Steps()
    counted = Counted(steps.place)
    plain = one_offs(steps, 500)
    keyed = [wanted._replace(key=IdempotencyKey(wanted.run_id, "digest", 60.0)) for wanted in plain]
    answers = KeyValueStore(counted).submit(keyed, "submitter", DISPATCH)
    assert len(answers) == 500
    assert (counted.reads, counted.writes) == (2, 2)


@pytest.mark.parametrize("purges_first", [False, True])
def test_a_dead_one_off_is_replayed_or_purged_as_a_whole(purges_first: bool) -> None:
    steps = Steps()
    steps.store.submit(one_offs(steps, due_at=None), "submitter", DISPATCH)
    run = steps.running()
    steps.store.finish([release(run, Ending("dlq", "retries exhausted", None, 1))])
    (letter,) = steps.store.runs(RunQuery(only_dead=True))
    replay = [NewRun(letter.run_id, letter.job_id, letter)]

    interrupted = Interrupted(steps.place)
    store = KeyValueStore(interrupted)
    if purges_first:
        interrupted.actions.append(lambda: steps.store.purge(DeadLetters([run.run_id])))
        assert store.enqueue(replay) == set()
        assert steps.rows().keys() == Steps().rows().keys()
    else:
        interrupted.actions.append(lambda: steps.store.enqueue(replay))
        assert store.purge(DeadLetters([run.run_id])).rows == 0
        assert steps.claim().run_id == run.run_id


@pytest.mark.parametrize("recovers_between", [False, True])
def test_no_one_off_is_added_with_a_fence_from_before_a_recovery(recovers_between: bool) -> None:
    steps = Steps()
    interrupted = Interrupted(steps.place)
    if recovers_between:
        interrupted.actions.append(steps.store.recover)
    else:
        steps.store.recover()
    KeyValueStore(interrupted).submit(one_offs(steps, due_at=None), "submitter", DISPATCH)
    assert steps.claim().fence > 1_000_000_000


def test_a_key_outlives_the_history_of_its_run() -> None:
    """Who asks again then gets the same answer, and nothing runs a second time."""
    steps = Steps()
    (wanted,) = one_offs(steps, due_at=None, key=IdempotencyKey("order", "digest", 3600.0))
    (first,) = steps.store.submit([wanted], "submitter", DISPATCH).values()
    steps.store.finish([release(steps.running())])
    steps.clock.later(60)
    assert steps.store.purge(OldRuns(30.0)).rows == 1
    (again,) = steps.store.submit([wanted], "submitter", DISPATCH).values()
    assert (again.run_id, again.is_new, again.due_at) == (first.run_id, True, first.due_at)
    assert steps.store.due(100).jobs == []

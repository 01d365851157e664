"""The history over rows that are compared and set: its orders, its pages, and what is forgotten."""

from datetime import datetime, timedelta

import pytest

from celery_sqlbeat.model import AddJob, DeleteJob, Node
from celery_sqlbeat.store.keyvalue.tables import JOB, NAME
from celery_sqlbeat.store.purges import DeadLetters, OldNodes, OldRuns, Purged
from celery_sqlbeat.store.records import RunQuery
from tests.support.memory_place import NOON, Bench, draft

MINUTE = timedelta(minutes=1)
DAY = 86400.0


@pytest.fixture
def bench() -> Bench:
    return Bench()


def ids(bench: Bench, **query: object) -> list[str]:
    return [run.run_id for run in bench.history.runs(RunQuery(**query))]  # type: ignore[arg-type]  # the tests know


def after(bench: Bench, run_id: str, **query: object) -> list[str]:
    (last,) = bench.history.runs(RunQuery(run_ids=[run_id]))
    return ids(bench, after=last, **query)


def test_the_history_is_read_newest_first_and_page_by_page(bench: Bench) -> None:
    job_id = bench.add("a")
    for n in range(5):
        bench.run(job_id, f"run-{n}")
    assert ids(bench, page_size=3) == ["run-4", "run-3", "run-2"]
    assert after(bench, "run-2", page_size=3) == ["run-1", "run-0"]
    assert after(bench, "run-0") == []
    assert set(ids(bench, run_ids=["run-1", "run-4", "run-9"])) == {"run-1", "run-4"}
    assert ids(bench, run_ids=[]) == []


def test_a_page_of_one_state_ends_with_the_last_run_that_was_seen(bench: Bench) -> None:
    job_id = bench.add("a")
    for n, state in enumerate(("dlq", "success", "dlq", "success", "dlq")):
        bench.run(job_id, f"run-{n}", state=state)
    assert ids(bench, state="dlq", page_size=2) == ["run-4", "run-3"]
    assert after(bench, "run-3", state="dlq", page_size=2) == ["run-2", "run-1"]
    assert after(bench, "run-1", state="dlq", page_size=2) == ["run-0"]


def test_the_history_of_a_job_is_in_order_of_slots_and_attempts(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.add("b")
    # The clock of the beat that made the later attempts was behind.
    for run_id, slot, attempt in (("r-5", 0, 1), ("r-1", 0, 2), ("r-3", 0, 3), ("r-2", 1, 1), ("r-4", -1, 1)):
        bench.run(job_id, run_id, scheduled_for=NOON + slot * MINUTE, attempt=attempt)
    bench.run(bench.job_id("b"), "r-9")
    whole = ["r-2", "r-3", "r-1", "r-5", "r-4"]
    assert ids(bench, job_id=job_id) == whole
    for size in (1, 2, 3):
        pages, page = [], ids(bench, job_id=job_id, page_size=size)
        while page:
            pages += page
            page = after(bench, page[-1], job_id=job_id, page_size=size)
        assert pages == whole, size


def test_the_dead_letters_are_read_oldest_first(bench: Bench) -> None:
    bench.add("a")
    for n in range(3):
        bench.letter("a", f"run-{n}", scheduled_for=NOON + n * MINUTE)
    assert ids(bench, only_dead=True, page_size=2) == ["run-0", "run-1"]
    assert after(bench, "run-1", only_dead=True) == ["run-2"]


def test_only_dead_letters_are_purged_by_name(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.letter("a", "run-1")
    bench.run(job_id, "run-2")
    assert bench.history.purge(DeadLetters(["run-1", "run-2", "run-3"])) == Purged(1)
    assert ids(bench) == ["run-2"]
    assert bench.history.purge(DeadLetters([])) == Purged(0)


def ended(bench: Bench, job_id: str, run_id: str, slot: datetime, **fields: object) -> None:
    bench.run(job_id, run_id, scheduled_for=slot, finished_at=slot, **fields)


def test_old_runs_are_purged_in_batches_the_oldest_first(bench: Bench) -> None:
    job_id = bench.add("a")
    for n in range(5):
        ended(bench, job_id, f"run-{n}", NOON + n * MINUTE)
    bench.later(DAY)
    first = bench.history.purge(OldRuns(60.0, limit=3))
    assert (first.rows, first.last, first.limit) == (3, NOON + 2 * MINUTE, 3)
    second = bench.history.purge(OldRuns(60.0, first.last, limit=3))
    assert (second.rows, second.last) == (2, NOON + 4 * MINUTE)
    assert bench.history.purge(OldRuns(60.0)).last is None


def test_what_is_still_needed_is_not_purged_and_keeps_nothing_else_from_it(bench: Bench) -> None:
    job_id = bench.add("a")
    bench.put(JOB, job_id, retry_at=NOON, retry_run_id="waiting")
    ended(bench, job_id, "waiting", NOON, state="retry")
    ended(bench, job_id, "outbox", NOON, state="retry", due_at=NOON)
    ended(bench, job_id, "letter", NOON, state="dlq")
    bench.run(job_id, "open", state="running")
    for n in range(4):
        bench.run(job_id, f"late-{n}", finished_at=NOON + 10 * MINUTE)
    ended(bench, job_id, "failed", NOON, state="retry")
    for n in range(6):
        ended(bench, job_id, f"old-{n}", NOON)
    bench.later(600)
    purged = bench.history.purge(OldRuns(300.0, limit=3))
    assert purged.rows == 3
    assert bench.history.purge(OldRuns(300.0, purged.last, limit=9)).rows == 4
    kept = {"waiting", "outbox", "letter", "open", *(f"late-{n}" for n in range(4))}
    assert set(ids(bench)) == kept


def test_silent_nodes_are_forgotten_and_their_tasks_with_them(bench: Bench) -> None:
    bench.nodes.heartbeat(Node("old", "worker", "host", 1, "0.1", tasks='["a"]'))
    bench.later(100)
    bench.nodes.heartbeat(Node("new", "worker", "host", 2, "0.1"))
    assert bench.history.purge(OldNodes(60.0)).rows == 1
    assert [node.node_id for node in bench.nodes.nodes(1000)] == ["new"]
    assert bench.row("tasks", "old") is None


def test_a_node_that_comes_back_meanwhile_is_not_forgotten(bench: Bench) -> None:
    node = Node("old", "worker", "host", 1, "0.1")
    bench.nodes.heartbeat(node)
    bench.later(100)
    other = bench.nodes
    bench.between(lambda: other.heartbeat(node))
    assert bench.history.purge(OldNodes(60.0)).rows == 0
    assert bench.nodes.nodes(60.0)


def test_a_name_that_was_deleted_long_ago_is_forgotten_and_its_fence_is_not(bench: Bench) -> None:
    bench.put(JOB, bench.add("a"), fence=7)
    bench.writer.write_jobs([DeleteJob("a")])
    assert bench.history.purge(OldNodes(DAY)).rows == 0
    bench.later(DAY + 1)
    assert bench.history.purge(OldNodes(DAY)).rows == 1
    assert bench.row(NAME, "a") is None
    bench.add("a", "b")
    assert [bench.job(name)["fence"] for name in "ab"] == [7, 7]


def test_a_name_that_is_defined_again_meanwhile_is_not_forgotten(bench: Bench) -> None:
    bench.put(JOB, bench.add("a"), fence=7)
    bench.writer.write_jobs([DeleteJob("a")])
    bench.later(DAY + 1)
    other = bench.writer
    bench.between(lambda: other.write_jobs([AddJob(draft("a"))]))
    assert bench.history.purge(OldNodes(DAY)).rows == 0
    assert bench.job("a")["fence"] == 7


def test_a_job_that_is_added_as_its_name_is_forgotten_sees_the_floor(bench: Bench) -> None:
    bench.put(JOB, bench.add("a"), fence=7)
    bench.writer.write_jobs([DeleteJob("a")])
    bench.later(DAY + 1)
    other = bench.history
    bench.between(lambda: other.purge(OldNodes(DAY)))
    bench.add("a")
    assert bench.job("a")["fence"] == 7


def test_names_are_forgotten_in_parts(bench: Bench) -> None:
    names = [f"job-{n:04}" for n in range(1100)]
    bench.add(*names)
    bench.writer.write_jobs([DeleteJob(name) for name in names])
    bench.later(DAY + 1)
    assert bench.history.purge(OldNodes(DAY)).rows == 1100

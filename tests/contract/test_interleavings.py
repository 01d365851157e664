"""Any two operations on one job, from two sessions, in every order of statements, on PostgreSQL.

Under READ COMMITTED a statement that waited for a row judges that row anew, but what it joined
stays as it was before. Whatever the order, the end must be one that whole transactions one after
the other can reach.
"""

import itertools
import json
import random
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from celery_sqlbeat.model import lifecycle
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.dialects.postgresql import Postgresql
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.store import SqlStore
from tests.contract.conftest import Place
from tests.contract.operations import ENDED, JOB, STATES, Actor, Case, Operation
from tests.contract.stepping import Side, every_statement, plays, second_in_one_go, whole_transactions
from tests.support.views import BeatView, WorkerView
from tests.support.world import World

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("place", ["postgresql"], indirect=True)]

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
PASSED_OVER = {  # what never waits: it passes by what the other one holds
    # A reading may come before the other one's commit, and the claim, which compares, after it.
    "claim": [frozenset({name}) for name in ("read_outbox", "read_due", "claim_jobs", "advance_jobs")],
    "extend": [frozenset({"extend_leases"}), frozenset({"extend_held"})],
    "mark_published": [frozenset({"mark_published"})],
    "mark_dispatched": [frozenset({"release_at_once"})],
    "release_claims": [frozenset({"release_at_once"})],
    "reclaim": [frozenset({"release_at_once"})],
    "postpone_start_deadline": [frozenset({"postpone_start_deadline"})],
    "release_orphan_locks": [frozenset({"release_orphan_locks"})],
}


@pytest.mark.parametrize(("state", "operations"), STATES, ids=[state.__name__ for state, _ in STATES])
def test_every_order_of_statements_ends_as_whole_transactions_do(
    world: World, place: Place, state: Callable[[World], Case], operations: dict[str, Operation]
) -> None:
    bench = Bench(world, place, state)
    wrong: list[str] = []
    try:
        for first, second in itertools.combinations_with_replacement(operations, 2):
            if ENDED.keys() <= operations.keys() and not ENDED.keys() & {first, second}:
                continue
            wrong += bench.compare((first, operations[first]), (second, operations[second]))
    finally:
        bench.close()
    assert not wrong, f"{bench.count} plays:\n" + "\n".join(wrong)


class Bench:
    """Plays operations against each other, from the same state each time."""

    def __init__(self, world: World, place: Place, state: Callable[[World], Case]) -> None:
        dialect = cast(Postgresql, place.dialect())
        self._direct = cast(Any, dialect.connect())._connection
        self._direct.execute("SET synchronous_commit = off")
        self._namespace = world.namespace
        world.add(JOB)
        self._case = state(world)
        self._case.read = world.record(JOB)
        self._case.ended = world.beat.ended(10)
        self._save()
        self._sides = [Side(dialect, self._direct) for _ in "ab"]
        self._actors = [Actor(name, side, world) for name, side in zip("ab", self._sides, strict=True)]
        known = {self._case.start_id, *(id for actor in self._actors for id in (actor.start_id, actor.run_id))}
        self._known = known | set(UUID.findall(self._rows()))
        self._alone: dict[tuple[str, int], str] = {}
        self.count = 0

    def compare(self, first: tuple[str, Operation], second: tuple[str, Operation]) -> list[str]:
        """Play every order of the statements of two operations; return what went wrong."""
        works = [
            self._work(operation, actor) for (_, operation), actor in zip((first, second), self._actors, strict=True)
        ]
        names = (first[0], second[0])
        rows: set[str] = set()
        allowed = self._serial(works, rows)
        alone = [self._rows_alone(names[at], works, at) for at in (0, 1)]
        for side, name in zip(self._sides, names, strict=True):
            for passed in PASSED_OVER.get(name, ()):
                side.passes_over = passed
                allowed |= self._serial(works, set())
                side.passes_over = frozenset()
        # An operation that changes nothing, before and after the other one, is tried at each point
        # of the other only.
        idle = [at for at in (0, 1) if rows == {alone[1 - at]}]
        rule = every_statement
        if idle:
            rule = second_in_one_go
            if 1 not in idle:
                rule = _first_in_one_go
        wrong = []
        for done in plays(self._sides, works, rule, self._restore):
            self.count += 1
            end = self._end(done.results)
            broken = "a deadlock" if done.deadlocks else _broken(names, done.results, self._found())
            if end not in allowed or broken:
                wrong.append(f"{done}: {broken or _difference(end, allowed)}")
        return [f"A = {names[0]}, B = {names[1]}: {len(wrong)} orders, as {wrong[0]}"] if wrong else []

    def close(self) -> None:
        """Close all connections."""
        for side in self._sides:
            side.database.close()
        self._direct.close()

    def _work(self, operation: Operation, actor: Actor) -> Callable[[], object]:
        return lambda: operation(self._case, actor)

    def _rows_alone(self, name: str, works: Sequence[Callable[[], object]], at: int) -> str:
        if (name, at) not in self._alone:
            self._restore()
            works[at]()
            self._alone[name, at] = self._rows()
        return self._alone[name, at]

    def _serial(self, works: Sequence[Callable[[], object]], rows: set[str]) -> set[str]:
        ends = set()
        for done in plays(self._sides, works, whole_transactions, self._restore):
            self.count += 1
            ends.add(self._end(done.results))
            rows.add(self._rows())
        return ends

    def _end(self, results: Sequence[object]) -> str:
        shown = [sorted(map(str, one)) if isinstance(one, set) else str(one) for one in results]
        return self._normal(json.dumps([*shown, json.loads(self._rows())], indent=1))

    def _normal(self, text: str) -> str:
        return UUID.sub(lambda match: match[0] if match[0] in self._known else "new", text)

    def _found(self) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads(self._rows()))

    def _rows(self) -> str:
        (row,) = self._direct.execute(
            """
            SELECT json_build_object(
                'jobs', (SELECT json_agg(to_jsonb(j)) FROM Jobs AS j WHERE Namespace = $1),
                'runs', (SELECT json_agg(to_jsonb(r) ORDER BY ScheduledFor, Kind, Attempt, SlotCount)
                         FROM JobRuns AS r WHERE Namespace = $1),
                'changes', (SELECT Counter FROM Changes WHERE Namespace = $1)
            )::text""",
            [self._namespace],
        ).fetchall()
        return self._normal(row[0]) if hasattr(self, "_known") else row[0]

    def _save(self) -> None:
        columns = {
            table: ", ".join(
                row[0]
                for row in self._direct.execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0"
                    " AND attgenerated = '' AND NOT attisdropped",
                    [table],
                )
            )
            for table in ("Jobs", "JobRuns", "Changes")
        }
        scope = f"Namespace = '{self._namespace}'"
        self._direct.execute(
            ";".join(
                f"CREATE TEMP TABLE Saved{table} AS SELECT {names} FROM {table} WHERE {scope}"
                for table, names in columns.items()
            )
        )
        self._script = ";".join(
            f"DELETE FROM {table} WHERE {scope}; INSERT INTO {table} ({names}) SELECT {names} FROM Saved{table}"
            for table, names in columns.items()
        )
        # What the deletion above leaves would raise the fences of the same jobs from play to play.
        self._script = self._script.replace(
            "; INSERT INTO Jobs ", f"; DELETE FROM DeletedJobs WHERE {scope}; INSERT INTO Jobs "
        )

    def _restore(self) -> None:
        self._direct.execute(self._script)


def _first_in_one_go(sides: Sequence[Side], steps: list[int]) -> Sequence[int]:
    return (0,) if 0 in steps and sides[0].at == "ready" else (0, 1)


def _broken(names: tuple[str, str], results: Sequence[Any], found: dict[str, Any]) -> str:
    """Return what is wrong whatever the serial orders give; empty where nothing is."""
    if all(name.startswith(("claim", "start_and_finish")) or name == "start" for name in names):
        begun = [result[0] if isinstance(result, tuple) else result for result in results]
        if all(begun) and (names[0] == "claim") == (names[1] == "claim"):
            return f"G1, G3: both won: {begun}"
    job = found["jobs"][0] if found["jobs"] else {}
    runs = found["runs"] or []
    for run in runs:
        followed = [other for other in runs if _slot(other) == _slot(run) and other["attempt"] > run["attempt"]]
        kept = run["dueat"] or run["heldby"] or run["runid"] in (job.get("runid"), job.get("retryrunid"))
        if run["state"] in lifecycle.OPEN and not kept and not (run["state"] == "retry" and followed):
            return f"G2: nobody takes up this {run['state']} run of {run['scheduledfor']}"
        if (
            job.get("retryat")
            and not job["lockedby"]
            and run["runid"] == job["retryrunid"]
            and run["state"] not in ("scheduled", "retry")
        ):
            return f"G3: a {run['state']} run waits for its retry"
    return ""


def _slot(run: dict[str, Any]) -> tuple[str, str]:
    return run["scheduledfor"], run["kind"]


def _difference(end: str, allowed: set[str]) -> str:
    lines = end.splitlines()
    nearest = min(
        ([line for line in lines if line not in other.splitlines()] for other in allowed), key=len, default=[]
    )
    return "; ".join(line.strip() for line in nearest[:12])


BATCH = 100
ROUNDS = 15


def test_overlapping_batches_in_any_order_never_deadlock(world: World, place: Place) -> None:
    """Every statement locks the jobs in the order of their runs, however they were given."""
    for _ in range(BATCH):
        world.add()
    claims = world.claim().claims
    runs = world.worker.start([world.request(claim) for claim in claims[: BATCH // 2]])
    faults: list[Exception] = []

    def again_and_again(seed: int, work: Callable[[SqlStore, random.Random], object]) -> None:
        shuffle = random.Random(seed)
        dialect = cast(Any, place.dialect())
        database = Database(dialect, sleep=lambda _: None)
        classify = dialect.classify

        def noted(error: Exception) -> Fault:
            faults.append(error)
            return cast(Fault, classify(error))

        dialect.classify = noted
        store = SqlStore(database, world.namespace)
        try:
            for _ in range(ROUNDS):
                work(store, shuffle)
        finally:
            database.close()

    def mark(store: SqlStore, order: random.Random) -> object:
        published = [(claim, 120.0) for claim in order.sample(claims, BATCH)]
        return BeatView(store, "beat-2").mark_published(published).done

    def begin(store: SqlStore, order: random.Random) -> object:
        return WorkerView(store, "worker-2").start([world.request(claim, 1) for claim in order.sample(claims, BATCH)])

    def extend(store: SqlStore, order: random.Random) -> object:
        held = [(run, 300.0) for run in order.sample(list(runs.values()), len(runs))]
        return WorkerView(store, "worker-1").extend(held)

    works = [mark, mark, begin, begin, extend, extend]
    threads = [threading.Thread(target=again_and_again, args=(seed, work)) for seed, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []

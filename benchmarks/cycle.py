"""The rate of full cycles (claim, mark, start, success) against the same bare statements."""

import gc
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import NamedTuple

from benchmarks.places import Place, Statement, available_places, mariadb_answers, mariadb_place
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.environment import Ids, now
from celery_sqlbeat.model import StartRequest
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import after_success
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store import Store
from tests.support.claiming import claim_due
from tests.support.views import BeatView, WorkerView

JOBS = 10_000
BATCH = 500
ROUNDS = 9  # after one to warm up

# One instant for both places: a claim compares it.
_DUE = "UPDATE Jobs SET NextRunTime = '{instant}'"
_ENDED = "SELECT count(*) FROM JobRuns WHERE State = 'success'"
_FILL = {
    "sqlite": "INSERT INTO Jobs (Id, JobName, TaskName, Schedule, Args) "
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs}) "
    "SELECT printf('%08x-0000-4000-8000-%012x', (i * 2654435761) % 4294967296, i), "
    "'job-' || i, 'app.task', 'every 60s', '[1, 2]' FROM n",
    "postgresql": "INSERT INTO Jobs (Id, JobName, TaskName, Schedule, Args) "
    "SELECT (lpad(to_hex((i * 2654435761) % 4294967296), 8, '0') || '-0000-4000-8000-' "
    "|| lpad(to_hex(i), 12, '0'))::uuid, "
    "'job-' || i, 'app.task', 'every 60s', '[1, 2]' FROM generate_series(1::bigint, {jobs}) AS i",
    "mysql": "INSERT INTO Jobs (Id, JobName, TaskName, Schedule, Args) "
    "SELECT concat(lpad(lower(hex((seq * 2654435761) % 4294967296)), 8, '0'), '-0000-4000-8000-', "
    "lpad(lower(hex(seq)), 12, '0')), "
    "concat('job-', seq), 'app.task', 'every 60s', '[1, 2]' FROM seq_1_to_{jobs}",
}


class Rates(NamedTuple):
    """Cycles a second, and what the store leaves of the bare rate: the medians of the rounds."""

    store: float
    bare: float
    ratio: float


def measure(place: Place, twin: Place) -> Rates:
    """Measure rounds of the store, each followed by its statements on the driver alone."""
    database = place.dialect().name
    for one in (place, twin):
        one.by_hand(_FILL[database].format(jobs=JOBS))
    store, bare = place.store(), twin.bare()
    pairs = []
    for _ in range(ROUNDS + 1):
        instant = f"{now() - timedelta(seconds=1):%Y-%m-%d %H:%M:%S.%f}"
        for one in (place, twin):
            one.by_hand(_DUE.format(instant=instant))
        statements: list[Statement] = []
        place.recording = statements
        store_seconds = _seconds_of_cycles(store)
        place.recording = None
        pairs.append((store_seconds, _seconds_of_statements(bare, statements)))
    store.close()
    if not place.rows(_ENDED) == twin.rows(_ENDED) == [(JOBS * (ROUNDS + 1),)]:
        raise AssertionError("the bare statements did not do the same work, so this is no measurement")
    pairs = pairs[1:]
    return Rates(
        JOBS / median(seconds for seconds, _ in pairs),
        JOBS / median(seconds for _, seconds in pairs),
        median(bare_seconds / seconds for seconds, bare_seconds in pairs),
    )


def _seconds_of_statements(bare: Callable[[Statement], None], statements: list[Statement]) -> float:
    gc.collect()
    begun = time.perf_counter()
    for statement in statements:
        bare(statement)
    return time.perf_counter() - begun


def _seconds_of_cycles(store: Store) -> float:
    beat, worker, ids = BeatView(store, "bench"), WorkerView(store, "bench"), Ids()
    planner = Planner(Rules(Policies(), "UTC", 120.0, 3), ids)
    success, done = after_success(), 0
    gc.collect()
    begun = time.perf_counter()
    while done < JOBS:
        claims = claim_due(beat, planner, BATCH, 15.0).claims
        marked = beat.mark_published([(claim, claim.lease_seconds) for claim in claims]).done
        requests = [
            StartRequest(claim.run_id, claim.claim_id, claim.fence, start_id, 0)
            for claim, start_id in zip(claims, ids.claim_ids(len(claims)), strict=True)
        ]
        started = worker.start(requests)
        lost = worker.finish([(run, success) for run in started.values()])
        if not len(claims) == len(marked) == len(started) == BATCH or lost:
            raise AssertionError("a cycle was not complete, so this is no measurement")
        done += len(claims)
    return time.perf_counter() - begun


def main() -> None:
    """Print the rates for the databases that are there."""
    print(f"\nFull cycles a second: claim, mark published, start, success; {JOBS} jobs in batches of {BATCH}")
    print(f"{'database':12} {'store':>10} {'bare':>10} {'store/bare':>11}")
    places = {**available_places(), **({"MariaDB": mariadb_place} if mariadb_answers() else {})}
    for name, make in places.items():
        with make() as place, make() as twin:
            rates = measure(place, twin)
        print(f"{name:12} {rates.store:>10,.0f} {rates.bare:>10,.0f} {rates.ratio:>11.2f}", flush=True)

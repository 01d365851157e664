"""Many jobs due at once.

Claimed, published and marked by a beat, in turns with a bare loop of `send_task`.
"""

import gc
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from celery import Celery

from benchmarks.brokers import BROKERS, bench_app, empty, in_words, settled
from benchmarks.places import Maker, Place, available_places
from benchmarks.publish import Clock, send_bare
from celery_sqlbeat import Scheduler
from celery_sqlbeat.model import Node

JOBS = 10_000
WAVES = 3  # after one to warm up
BARE = 125  # messages of the loop after each tick; it is the slower one by far
TARGETS = {"Redis": 4.0, "RabbitMQ": 3.0}  # the floors: times a loop of `send_task`

_FILL = {
    "sqlite": "INSERT INTO Jobs (JobName, TaskName, Schedule, Args, NextRunTime) "
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs}) "
    "SELECT 'job-' || i, 'shop.report', 'every 1h', '[1]', '9000-01-01 00:00:00.000000' FROM n",
    "postgresql": "INSERT INTO Jobs (JobName, TaskName, Schedule, Args, NextRunTime) "
    "SELECT 'job-' || i, 'shop.report', 'every 1h', '[1]', '9000-01-01 UTC' FROM generate_series(1, {jobs}) AS i",
}
# As if each job had ended and were due again.
_DUE = (
    "UPDATE Jobs SET LockedBy = NULL, LeaseEndsAt = NULL, PlannedAt = NULL, RunId = NULL, ClaimId = NULL, "
    "NextRunTime = {instant} WHERE JobName LIKE 'job-%'"
)
_INSTANT = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now', '-1 second')",
    "postgresql": "clock_timestamp() - interval '1 second'",
}
# What a beat looks at between its polls.
_CHANGED = (
    "INSERT INTO Changes (Namespace, Counter) VALUES ('default', 1) "
    "ON CONFLICT (Namespace) DO UPDATE SET Counter = Changes.Counter + 1"
)


class Rates(NamedTuple):
    """Of the beat, and of the loop."""

    beat: Clock
    bare: Clock


def measure(place: Place, url: str, leased: bool) -> Rates:
    """Fire all jobs of a place, several times over."""
    database = place.dialect().name
    place.by_hand(_FILL[database].format(jobs=JOBS))
    conf = {"sqlbeat_database_url": place.url, "sqlbeat_notice_interval": 0.02}
    with bench_app(url, conf) as app, bench_app(url) as plain, settled(plain) as settle:
        if leased:
            _register_worker(place, app.conf.task_default_queue)
        scheduler = Scheduler(app)
        scheduler.setup_schedule()
        scheduler.tick()
        send_bare(plain, 1)
        rates = Rates(Clock(), Clock())
        for wave in range(WAVES + 1):
            place.by_hand(_DUE.format(instant=_INSTANT[database]))
            place.by_hand(_CHANGED)
            time.sleep(0.05)  # longer than the notice interval
            _fire_all(scheduler, plain, settle, rates if wave else Rates(Clock(), Clock()))
            empty(app)
            empty(plain)
        states = _states(place)
        scheduler.close()
    wanted = "claimed" if leased else "dispatched"
    assert states == {wanted: JOBS * (WAVES + 1)}, states
    return rates


def _fire_all(scheduler: Any, plain: Celery, settle: Callable[[], None], rates: Rates) -> None:
    gc.collect()
    fired, before, membership = 0, 0, scheduler._parts.membership
    while fired < JOBS or membership.claimed > before:  # the tick that finds nothing more ends the last batch
        before = membership.claimed
        began, processor = time.perf_counter(), time.process_time()
        scheduler.tick()
        seconds, processor_seconds = time.perf_counter() - began, time.process_time() - processor
        assert membership.claimed > before or fired == JOBS, "nothing was fired, so this is no measurement"
        fired += membership.claimed - before
        rates.beat.add(membership.claimed - before, seconds, processor_seconds)
        rates.bare.time(BARE, lambda: send_bare(plain, BARE))
        settle()


def _register_worker(place: Place, queue: str) -> None:
    store = place.store()
    store.heartbeat(Node("worker@bench", "worker", socket.gethostname(), os.getpid(), "0", queues=f'["{queue}"]'))
    store.close()


def _states(place: Place) -> dict[str, int]:
    rows = place.rows("SELECT State, count(*) FROM JobRuns GROUP BY State")
    return {str(state): int(count) for state, count in rows}


def main() -> None:
    """Print the rates for the databases and brokers that answer."""
    logging.getLogger("celery_sqlbeat").setLevel(logging.ERROR)
    print(f"\nJobs a second, {JOBS:,} due at once: claimed, published and marked, to a bare loop of send_task")
    print(
        f"{'broker':10} {'database':12} {'kind':16} {'beat':>8} {'send_task':>10} {'ratio':>6} {'target':>7} {'CPU':>6}"
    )
    for broker, url in BROKERS.items():
        for name, make in available_places().items():
            for kind in ("fire and forget", "leased"):
                _print_one(broker, url, name, make, kind)


def _print_one(broker: str, url: str, name: str, make: Maker, kind: str) -> None:
    try:
        with make() as place:
            rates = measure(place, url, kind == "leased")
    except OSError as error:
        print(f"{broker} is left out: {in_words(error)}")
        return
    ratio, processor = rates.beat.rate / rates.bare.rate, rates.bare.processor / rates.beat.processor
    print(
        f"{broker:10} {name:12} {kind:16} {rates.beat.rate:>8,.0f} {rates.bare.rate:>10,.0f} {ratio:>6.2f}"
        f" {TARGETS[broker]:>6.1f}x {processor:>6.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()

"""What the extension costs a worker.

The same messages worked off with and without it, in turns, by real workers.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from celery import Celery

from benchmarks.brokers import REDIS, bench_app
from benchmarks.one_worker import Wish, Work, measure
from benchmarks.places import Place, available_places
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.publish.publisher import Publisher
from tests.support.claiming import claim_due
from tests.support.views import BeatView

MESSAGES = 3000
ROUNDS = 3
TARGET, PLAIN_TARGET = 0.9, 0.97
MOST_STATEMENTS, MOST_DELAY = 0.2, 0.020  # per run; seconds
RUNS, HEARTBEAT = 1000, 2.0
_QUEUED = 3600.0  # seconds that a message may wait in the queue


class Shop:
    """Messages of jobs and plain ones, in a queue that only one worker at a time consumes."""

    def __init__(self, place: Place, app: Celery, url: str) -> None:
        self._place, self._app, self._url = place, app, url
        self._store = place.store()
        self._publisher = Publisher(app)
        self._publisher.identify(self._store.check_schema().store_id, "default")

    def schedule(self, count: int, task: str = "shop.report", args: str = "[1]") -> None:
        """Publish the messages of so many jobs that are due."""
        self._place.by_hand("DELETE FROM JobRuns; DELETE FROM Jobs")
        self._place.by_hand(
            "INSERT INTO Jobs (JobName, TaskName, Schedule, Args, NextRunTime) "
            f"SELECT 'job-' || i, '{task}', 'every 1h', '{args}', clock_timestamp() "
            f"FROM generate_series(1, {count}) AS i"
        )
        beat = BeatView(self._store, "bench")
        self._publisher.connect(10)
        planner = Planner(Rules(Policies(), "UTC", 120.0, 3))
        published = 0
        while published < count:
            published += self._publish(beat, planner)

    def _publish(self, beat: BeatView, planner: Planner) -> int:
        claims = claim_due(beat, planner, 500, 300.0).claims
        sent = self._publisher.publish(claims, time.monotonic() + 30)
        assert claims
        assert not sent.failed
        beat.mark_published([(claim, _QUEUED) for claim in claims])
        return len(claims)

    def send(self, count: int, task: str = "shop.report", args: Any = (1,)) -> None:
        """Send plain messages."""
        with self._app.producer_pool.acquire(block=True) as producer:
            for _ in range(count):
                self._app.send_task(task, args, producer=producer)

    def wish(self, with_it: bool, messages: int, **options: Any) -> Wish:
        """Return a worker on this shop."""
        queue = self._app.conf.task_default_queue
        return Wish(self._url, queue, self._place.url if with_it else None, messages, **options)

    def states(self) -> dict[str, int]:
        """How the runs stand."""
        return {
            str(state): int(n) for state, n in self._place.rows("SELECT State, count(*) FROM JobRuns GROUP BY State")
        }


def alternate(fill: Callable[[], None], measured: Callable[[bool], Work], rounds: int) -> tuple[list[Work], list[Work]]:
    """With and without the extension in turns, the queue filled before each."""
    found: dict[bool, list[Work]] = {True: [], False: []}
    for number in range(rounds):
        for with_it in (True, False) if number % 2 else (False, True):
            fill()
            found[with_it].append(measured(with_it))
    return found[True], found[False]


def throughput(shop: Shop, processes: int, task: str, args: str, messages: int = MESSAGES, rounds: int = ROUNDS) -> str:
    """Scheduled messages: one line of the table."""

    def measured(with_it: bool) -> Work:
        work = measure(shop.wish(with_it, messages, concurrency=processes))
        if with_it:
            assert shop.states() == {"success": messages}, shop.states()
        return work

    ours, plain = alternate(lambda: shop.schedule(messages, task, args), measured, rounds)
    ratio = statistics.median(a.rate / b.rate for a, b in zip(ours, plain, strict=True))
    per_run = statistics.median(one.statements / one.runs for one in ours)
    delay = statistics.median(one.delays[int(len(one.delays) * 0.99)] for one in ours)
    rate, bare = (statistics.median(one.rate for one in side) for side in (ours, plain))
    # The least is what other programs on the machine have disturbed least.
    processor, bare_processor = (min(one.processor for one in side) for side in (ours, plain))
    return (
        f"{rate:>9,.0f} {bare:>9,.0f} {ratio:>6.2f} {per_run:>11.2f} {delay * 1000:>9.1f} "
        f"{processor:>8.0f} {bare_processor:>8.0f}"
    )


def unscheduled(shop: Shop, processes: int, messages: int = MESSAGES, rounds: int = 5) -> float:
    """Plain messages: the median of the ratios of neighbours."""

    def measured(with_it: bool) -> Work:
        return measure(shop.wish(with_it, messages, concurrency=processes))

    ours, plain = alternate(lambda: shop.send(messages), measured, rounds)
    return statistics.median(a.rate / b.rate for a, b in zip(ours, plain, strict=True))


def many_runs(shop: Shop) -> Work:
    """So many runs at once in one gevent worker, each longer than the measurement."""
    shop.schedule(RUNS, "shop.nap", "[120]")
    conf = {"sqlbeat_heartbeat_interval": HEARTBEAT, "worker_prefetch_multiplier": 2}
    return measure(shop.wish(True, RUNS, pool="gevent", concurrency=RUNS, seconds=10 * HEARTBEAT, conf=conf))


def main() -> None:
    """Print what the extension costs."""
    if "PostgreSQL" not in (places := available_places()):
        return
    print(
        f"\nA prefork worker on Redis and PostgreSQL, {MESSAGES:,} scheduled messages, with and without the extension"
    )
    print(
        f"targets: ratio {TARGET}, at most {MOST_STATEMENTS} statements per run, "
        f"p99 of the delay {MOST_DELAY * 1000:.0f} ms"
    )
    print("with and without: runs a second; CPU: microseconds of the main process per run, the least of the rounds")
    print(
        f"{'tasks':>8} {'processes':>10} {'with':>9} {'without':>9} {'ratio':>6} {'stmts/run':>11} {'p99 ms':>9} "
        f"{'CPU with':>8} {'without':>8}"
    )
    with places["PostgreSQL"]() as place, bench_app(REDIS) as app:
        shop = Shop(place, app, REDIS)
        for task, args, name in (("shop.report", "[1]", "no-op"), ("shop.nap", "[0.005]", "5 ms")):
            for processes in (2, 8):
                print(f"{name:>8} {processes:>10} {throughput(shop, processes, task, args)}", flush=True)
        print(
            f"plain messages, with to without, 2 processes: {unscheduled(shop, 2):.3f} (target {PLAIN_TARGET})",
            flush=True,
        )
        work = many_runs(shop)
        print(
            f"{RUNS:,} runs in one gevent worker, a heartbeat every {HEARTBEAT:g} s, "
            f"in {10 * HEARTBEAT:g} s: {work.kinds}"
        )


if __name__ == "__main__":
    main()

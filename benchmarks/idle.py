"""A beat that has nothing to do for a minute, with few and with many jobs in the table."""

import contextlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.one_beat import A_LITTLE, MINUTE, Cost, Wish, answer, start
from benchmarks.places import available_places

JOBS = (1_000, 100_000)
MOST_JOBS = 1_000_000
MANY_MINUTES = 10
NOTICE_INTERVALS = (5.0, 0.0)  # seconds; 0 turns it off
IN_STOCK_BEAT = 100_000

_FILL = {
    "sqlite": "INSERT INTO Jobs (JobName, TaskName, Schedule, NextRunTime) "
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs}) "
    "SELECT 'job-' || i, 'shop.report', 'every 1h', "
    "strftime('%Y-%m-%d %H:%M:%f000', 'now', '+' || (i % 100000 + 86400) || ' seconds') FROM n",
    "postgresql": "INSERT INTO Jobs (JobName, TaskName, Schedule, NextRunTime) "
    "SELECT 'job-' || i, 'shop.report', 'every 1h', "
    "clock_timestamp() + (i % 100000 + 86400) * interval '1 second' FROM generate_series(1, {jobs}) AS i",
}


def main(numbers: Sequence[int] = JOBS, minutes: int = 1) -> None:
    """Leave a beat alone on each of the tables, all of them beside each other.

    They do next to nothing.
    """
    print("\nIdle; CPU and statements a minute; the first tick changes nothing.", end=" ")
    print("Targets: 500 ms, 70 MB, 15 statements (8 at 0)")
    print(
        f"{'beat':12} {'jobs':>9} {'notice s':>8} {'first tick ms':>14} {'from exec ms':>13}"
        f" {'MB':>6} {'CPU ms':>7} {'statements':>11}"
    )
    with contextlib.ExitStack() as stack:
        places = []
        for name, make in available_places().items():
            for jobs in numbers:
                place = stack.enter_context(make())
                place.by_hand(_FILL[place.dialect().name].format(jobs=jobs))
                answer(start(Wish(place.url)))  # the next one has nothing to change
                places.append((name, jobs, place))
        for name, jobs, place in places:
            _print_one(name, jobs, "", answer(start(Wish(place.url))))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sqlbeat-bench-")))
        stock = Wish(None, IN_STOCK_BEAT, str(folder / "schedule"))
        answer(start(stock))
        _print_one("stock beat", IN_STOCK_BEAT, "", answer(start(stock)))
        running = []
        for name, jobs, place in places:
            for notice in NOTICE_INTERVALS:
                wish = Wish(place.url, seconds=minutes * MINUTE + A_LITTLE, notice_interval=notice)
                running.append((name, jobs, notice, start(wish)))
                # Else they woke at the same moments for ever, and whoever is the first finds the
                # caches cold.
                time.sleep(max(NOTICE_INTERVALS) / len(places) / len(NOTICE_INTERVALS))
        for name, jobs, notice, process in running:
            _print_one(name, jobs, f"{notice:g}", answer(process), minutes)


def million() -> None:
    """Measure the same with the largest table, and for longer.

    CPU differs most from minute to minute.
    """
    main((*JOBS, MOST_JOBS), MANY_MINUTES)


def _print_one(name: str, jobs: int, notice: str, cost: Cost, minutes: int = 1) -> None:
    alone, together = (f"{1000 * cost.first_tick:.0f}", f"{1000 * cost.from_exec:.0f}") if not notice else ("", "")
    spent, sent = (f"{1000 * cost.processor:.1f}", f"{cost.statements / minutes:g}") if notice else ("", "")
    print(
        f"{name:12} {jobs:>9,} {notice:>8} {alone:>14} {together:>13} {cost.megabytes:>6.1f} {spent:>7} {sent:>11}",
        flush=True,
    )

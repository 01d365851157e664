"""What the clean-up of a long history costs due jobs, and its rate. PostgreSQL and Redis."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import psycopg

from benchmarks.lateness import HEAD, JOBS, MEASURE, of_beats, print_one
from benchmarks.places import Place, postgresql_answers

ROWS = 600_000
ROUNDS = 2  # in turns, with old rows and with as many young ones
OLD, YOUNG = (
    20.0,
    6.96,
)  # days before which the first of the rows ended; they are kept for seven, and lie a second apart
_SAMPLE = 0.5  # seconds between two readings of how many rows are gone
_FILL = """
    INSERT INTO Jobs (JobName, TaskName, Schedule, Enabled) VALUES ('history', 'shop.report', 'every 1h', 0);
    INSERT INTO JobRuns
        (RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, FinishedAt, CreatedAt)
    SELECT gen_random_uuid(), 'default', j.Id, 'history', 'schedule', s.At, 1, 'dispatched', 'claimed', 1, s.At, s.At
    FROM Jobs AS j, (
        SELECT clock_timestamp() - {days} * interval '1 day' + i * interval '1 second' AS At
        FROM generate_series(1, {rows}) AS i
    ) AS s
    WHERE j.JobName = 'history'
"""


def main() -> None:
    """Print the lateness beside old rows and beside young ones, and the rows deleted a second."""
    if not postgresql_answers():
        return
    print(f"\n{JOBS:,} jobs every 1 to 10 s beside {ROWS:,} rows of history, {MEASURE:.0f} s, in turns")
    print(f"{HEAD} {'deleted a second':>17}")
    for _ in range(ROUNDS):
        _print_one("1, young", 1, YOUNG)
        _print_one("1, old", 1, OLD)


def three() -> None:
    """Print the lateness of three beats that share the clean-up, and the rows deleted a second."""
    print(f"\n{JOBS:,} jobs every 1 to 10 s beside {ROWS:,} old rows of history, {MEASURE:.0f} s")
    print(f"{HEAD} {'deleted a second':>17}")
    _print_one("3, old", 3, OLD)


def _print_one(name: str, beats: int, days: float) -> None:
    samples: list[tuple[float, int]] = []
    outcome = of_beats(beats, partial(_history, days, samples))
    print_one(name, outcome, f"{_rate(samples):>17,.0f}")


def _rate(samples: list[tuple[float, int]]) -> float:
    """Rows a second, from the first reading that saw some deleted to the last that saw more."""
    moved = [later for earlier, later in pairwise(samples) if later[1] > earlier[1]]
    if len(moved) < 2:
        return 0.0
    (began, before), (ended, after) = moved[0], moved[-1]
    return (after - before) / (ended - began)


@contextmanager
def _history(days: float, samples: list[tuple[float, int]], place: Place) -> Iterator[None]:
    """Fill the history, and read how many rows of it are deleted."""
    place.by_hand(_FILL.format(days=days, rows=ROWS))
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE JobRuns")  # so that neither this nor the writing of pages falls into it
        connection.execute("CHECKPOINT")
    over = threading.Event()

    def watch() -> None:
        with psycopg.connect(place.url, autocommit=True) as connection:
            while not over.wait(_SAMPLE):
                rows = connection.execute(
                    "SELECT coalesce(sum(n_tup_del), 0) FROM pg_stat_user_tables WHERE relname = 'jobruns'"
                )
                samples.append((time.monotonic(), int(rows.fetchone()[0])))  # type: ignore[index]  # it is an aggregate

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

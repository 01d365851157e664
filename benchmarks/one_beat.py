"""One beat in a process of its own.

How long its first tick takes, and what it costs to leave it idle.

Runs the scheduler as Celery's service does. Its statements are counted at the driver.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import celery.beat
from celery import Celery

from benchmarks.places import Place
from celery_sqlbeat import Scheduler

MINUTE = 60.0
# More than the minutes from the first tick, so that the poll at their end is counted. The next
# statement comes later.
A_LITTLE = 2.0  # seconds
START = 1.0  # second after the first tick, in which the threads of a beat connect and begin


class Wish(NamedTuple):
    """What is to be measured."""

    database_url: str | None
    """None for stock beat."""
    entries: int = 0
    """Of its `beat_schedule`; none of them is due."""
    schedule_file: str | None = None
    """Where stock beat keeps what ran."""
    seconds: float = 0.0
    """So long it is left alone after its first tick."""
    notice_interval: float = 5.0


class Cost(NamedTuple):
    """Of one beat."""

    first_tick: float
    """Seconds from the making of the scheduler to the end of its first tick."""
    from_exec: float
    """The same from the start of the process."""
    megabytes: float
    processor: float
    """Seconds a minute, while it was left alone: of the median minute, since other programs disturb
    some of them."""
    statements: int
    """Sent to the database in that time."""


def start(wish: Wish) -> "subprocess.Popen[str]":
    """Start a process that measures."""
    command = [sys.executable, "-m", "benchmarks.one_beat", json.dumps(wish)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(process: "subprocess.Popen[str]") -> Cost:
    """Return what it has measured."""
    output, errors = process.communicate(timeout=900)
    if process.returncode:
        raise AssertionError(errors)
    return Cost(*json.loads(output))


def _measure(wish: Wish) -> Cost:
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.beat_schedule = {
        f"entry-{number}": {"task": "shop.report", "schedule": timedelta(days=1), "args": (number,)}
        for number in range(wish.entries)
    }
    statements: list[tuple[str, Any]] = []
    began = time.perf_counter()
    scheduler: Any
    if wish.database_url is None:
        scheduler = celery.beat.PersistentScheduler(app, schedule_filename=wish.schedule_file)
    else:
        app.conf.update(sqlbeat_database_url=wish.database_url, sqlbeat_notice_interval=wish.notice_interval)
        place = Place(wish.database_url)
        place.recording = statements
        scheduler = Scheduler(app, lazy=True)
        scheduler._store = place.store()
        scheduler.setup_schedule()
    wait = scheduler.tick()
    first_tick, from_exec = time.perf_counter() - began, _age()
    if wish.seconds:  # else it only counts the first tick
        time.sleep(START)
        wait = max(0.0, wait - START)
    statements.clear()
    now = time.monotonic()
    spent, end, minute_ends = [time.process_time()], now + wish.seconds, now + MINUTE + A_LITTLE
    while (left := end - time.monotonic()) > 0:
        time.sleep(max(0.0, min(left, wait)))
        if time.monotonic() >= min(minute_ends, end):
            spent.append(time.process_time())
            minute_ends += MINUTE
        if time.monotonic() < end:
            wait = scheduler.tick()
    minutes = [after - before for before, after in pairwise(spent)]
    sent = sum(text not in ("BEGIN", "BEGIN IMMEDIATE", "COMMIT") for text, _ in statements)
    scheduler.close()
    return Cost(first_tick, from_exec, _megabytes(), statistics.median(minutes) if minutes else 0.0, sent)


def _age() -> float:
    """Seconds since this process began."""
    began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / 100  # in ticks of 10 ms
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def _megabytes() -> float:
    """Return what this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


if __name__ == "__main__":
    print(json.dumps(_measure(Wish(*json.loads(sys.argv[1])))))

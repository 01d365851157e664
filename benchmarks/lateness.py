"""How late messages arrive.

Real `celery beat` processes, many jobs on short intervals, PostgreSQL and Redis.
"""

import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import redis

from benchmarks.brokers import REDIS, bench_app
from benchmarks.places import Place, postgresql_answers, postgresql_place

JOBS = 1_000
INTERVALS = [1 + number % 10 for number in range(JOBS)]  # seconds
SETTLE = 10.0  # seconds; beats that have just started import modules and catch up with what was due meanwhile
MEASURE = 20.0  # seconds
HEAD = f"{'beats':12} {'a second':>9} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'CPU %':>7} {'drift ms':>9}"
_ROOT = Path(__file__).resolve().parents[1]

_FILL = (
    "INSERT INTO Jobs (JobName, TaskName, Schedule, Args, NextRunTime) SELECT 'job-' || i, 'shop.report', "
    "'every ' || 1 + i % 10 || 's', '[' || i || ']', clock_timestamp() + random() * (1 + i % 10) * interval '1 second' "
    f"FROM generate_series(0, {JOBS - 1}) AS i"
)

# A random phase for stock beat, too: without it all of its entries are due at the same instants.
_SHOP = """\
import json
from datetime import datetime, timedelta, timezone
from celery import Celery

app = Celery("shop", broker={broker!r})
app.conf.update(json.loads({conf!r}))
app.conf.beat_schedule = {{
    name: {{"task": "shop.report", "schedule": seconds, "args": [number],
           "last_run_at": datetime.now(timezone.utc) - timedelta(seconds=ago)}}
    for name, number, seconds, ago in json.loads({entries!r})
}}
"""


class Arrival(NamedTuple):
    """A message, and when it was there."""

    run_id: str
    job: int
    at: float


class Outcome(NamedTuple):
    """Of some seconds of so many beats."""

    rate: float
    late: list[float]
    """Seconds per message."""
    processor: float
    """Share of one core, of all beats together."""
    drift: float
    """The longest way of a slot from its job's grid, in seconds, at the end."""


def main() -> None:
    """Print how late one beat, four beats and stock beat are."""
    print(f"\n{JOBS:,} jobs every 1 to 10 s, PostgreSQL and Redis, {MEASURE:.0f} s. Targets: p99 < 20 ms, CPU < 30 %")
    print(HEAD)
    if postgresql_answers():
        for beats in (1, 4):
            print_one(f"{beats}", of_beats(beats))
    print_one("stock beat", _of_stock_beat())


def print_one(name: str, outcome: Outcome, more: str = "") -> None:
    """Print a line of the table."""
    cuts = [1000 * cut for cut in quantiles(outcome.late, n=100)]
    print(
        f"{name:12} {outcome.rate:>9.0f} {cuts[49]:>8.1f} {cuts[98]:>8.1f} {1000 * max(outcome.late):>8.1f}"
        f" {100 * outcome.processor:>7.1f} {1000 * outcome.drift:>9.3f} {more}".rstrip(),
        flush=True,
    )


def of_beats(beats: int, prepare: Callable[[Place], AbstractContextManager[object]] = nullcontext) -> Outcome:
    """Measure so many beats; `prepare` fills the tables, and lasts until the beats have stopped."""
    with postgresql_place() as place, bench_app(REDIS) as app:
        conf = {
            "sqlbeat_database_url": place.url,
            "sqlbeat_policies": {"*": {"cadence": "fixed_rate"}},
            "task_default_queue": app.conf.task_default_queue,
        }
        place.by_hand(_FILL)
        options = ("--scheduler", "celery_sqlbeat.Scheduler")
        with prepare(place), _processes(beats, conf, [], *options) as running:
            arrivals, processor = _watch(running, app.conf.task_default_queue)
        due, drift = _due(place)
    late = [arrival.at - due[arrival.run_id] for arrival in arrivals]
    return Outcome(len(late) / MEASURE, late, processor, drift)


def _due(place: Place) -> tuple[dict[str, float], float]:
    slots = place.rows(
        "SELECT RunId, JobName, ScheduledFor FROM JobRuns WHERE JobName <> 'history' ORDER BY ScheduledFor"
    )
    first: dict[str, datetime] = {}
    drift = 0.0
    for _, name, at in slots:
        interval = timedelta(seconds=1 + int(name.removeprefix("job-")) % 10)
        away = (at - first.setdefault(name, at)) % interval
        drift = max(drift, min(away, interval - away).total_seconds())
    return {str(run_id): at.timestamp() for run_id, _, at in slots}, drift


def _of_stock_beat() -> Outcome:
    """Measure stock beat, which records no due instants.

    A message is due its interval after the last.
    """
    chance = random.Random(1)
    entries = [
        (f"job-{number}", number, seconds, chance.random() * seconds) for number, seconds in enumerate(INTERVALS)
    ]
    with bench_app(REDIS) as app, tempfile.TemporaryDirectory(prefix="sqlbeat-bench-") as folder:
        conf = {"task_default_queue": app.conf.task_default_queue}
        with _processes(1, conf, entries, "-s", str(Path(folder) / "schedule")) as running:
            arrivals, processor = _watch(running, app.conf.task_default_queue)
    last: dict[int, float] = {}
    late, drifts = [], [0.0] * JOBS
    for arrival in arrivals:
        if arrival.job in last:
            late.append(arrival.at - last[arrival.job] - INTERVALS[arrival.job])
            drifts[arrival.job] += late[-1]
        last[arrival.job] = arrival.at
    return Outcome(len(arrivals) / MEASURE, late, processor, max(drifts))


def _watch(running: list["subprocess.Popen[bytes]"], queue: str) -> tuple[list[Arrival], float]:
    """Return what arrives during the measurement, and the share of a core that the beats take."""
    client = redis.Redis.from_url(REDIS)
    found: list[tuple[bytes, float]] = []
    _read(client, queue, 60.0, lambda body, at: True)  # until the first one is there
    _read(client, queue, SETTLE, lambda body, at: False)
    processor, began = _processor_seconds(running), time.monotonic()
    _read(client, queue, MEASURE, lambda body, at: bool(found.append((body, at))))  # type: ignore[func-returns-value]
    spent = (_processor_seconds(running) - processor) / (time.monotonic() - began)
    client.close()
    assert found, "nothing arrived, so this is no measurement"
    return [_arrival(body, at) for body, at in found], spent


def _read(client: Any, queue: str, seconds: float, take: Callable[[bytes, float], bool]) -> None:
    """Take messages for so long, or until `take` has had enough."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        popped = client.brpop([queue], timeout=1)
        if popped is not None and take(popped[1], time.time()):
            break


def _arrival(body: bytes, at: float) -> Arrival:
    message = json.loads(body)
    (args, *_) = json.loads(base64.b64decode(message["body"]))
    return Arrival(message["headers"]["id"], args[0], at)


def _processor_seconds(running: list["subprocess.Popen[bytes]"]) -> float:
    total = 0.0
    for process in running:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


@contextmanager
def _processes(
    count: int, conf: dict[str, Any], entries: list[Any], *options: str
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    with tempfile.TemporaryDirectory(prefix="sqlbeat-bench-") as folder:
        shop = _SHOP.format(broker=REDIS, conf=json.dumps(conf), entries=json.dumps(entries))
        (Path(folder) / "shop.py").write_text(shop)
        command = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop", "beat", "--pidfile=", *options]
        environ = {**os.environ, "PYTHONPATH": f"{_ROOT}{os.pathsep}{folder}"}
        running = [
            subprocess.Popen(
                command,
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(count)
        ]
        try:
            yield running
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(30)

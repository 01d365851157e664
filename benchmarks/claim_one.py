"""The time and memory of claiming one due job, with few and with many jobs in the table.

Each in its own process.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.places import Place, available_places
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.model import StartRequest
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import released
from celery_sqlbeat.planning import Planner
from tests.support.claiming import claim_due
from tests.support.views import BeatView, WorkerView

FEW, MANY = 1_000, 1_000_000  # jobs
CLAIMS = 400
TURNS = 5

_FILL = {
    "sqlite": "INSERT INTO Jobs (JobName, TaskName, Schedule, NextRunTime) "
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs}) "
    "SELECT 'job-' || i, 'app.task', 'every 1h', CASE WHEN i = 1 THEN '2020-01-01 00:00:00.000000' "
    "ELSE strftime('%Y-%m-%d %H:%M:%f000', 'now', '+' || (i % 100000 + 86400) || ' seconds') END FROM n",
    "postgresql": "INSERT INTO Jobs (JobName, TaskName, Schedule, NextRunTime) "
    "SELECT 'job-' || i, 'app.task', 'every 1h', CASE WHEN i = 1 THEN timestamptz '2020-01-01 UTC' "
    "ELSE clock_timestamp() + (i % 100000 + 86400) * interval '1 second' END FROM generate_series(1, {jobs}) AS i",
}


class Cost(NamedTuple):
    """Of one claim in one process."""

    microseconds: float
    megabytes: float


def measure(few: Place, many: Place) -> tuple[Cost, Cost]:
    """Fill two tables, then claim from them in turn, each time in a fresh process."""
    for place, jobs in ((few, FEW), (many, MANY)):
        place.by_hand(_FILL[place.dialect().name].format(jobs=jobs))
    # The first pair is to warm up: until then the log of a new database grows, which costs.
    pairs = [(_in_a_process(few), _in_a_process(many)) for _ in range(TURNS + 1)][1:]
    return _typical([pair[0] for pair in pairs]), _typical([pair[1] for pair in pairs])


def _in_a_process(place: Place) -> Cost:
    command = [sys.executable, "-m", "benchmarks.claim_one", place.url]
    return Cost(**json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _typical(costs: list[Cost]) -> Cost:
    return Cost(median(cost.microseconds for cost in costs), median(cost.megabytes for cost in costs))


def _claim_again_and_again(url: str) -> Cost:
    store = Place(url).store()
    beat, worker = BeatView(store, "bench"), WorkerView(store, "bench")
    planner = Planner(Rules(Policies(), "UTC", 120.0, 3))
    seconds = []
    for number in range(CLAIMS):
        begun = time.perf_counter()
        claims = claim_due(beat, planner, 500, 15.0).claims
        seconds.append(time.perf_counter() - begun)
        if len(claims) != 1:
            raise AssertionError(f"{len(claims)} jobs were due, so this is no measurement")
        # Back to the queue of due jobs, through the door that a worker uses.
        (claim,) = claims
        request = StartRequest(claim.run_id, claim.claim_id, claim.fence, claim.claim_id, 0)
        worker.finish([(run, released(f"round {number}")) for run in worker.start([request]).values()])
    return Cost(1e6 * median(seconds), _megabytes())


def _megabytes() -> float:
    """Return the most memory that this process had.

    ru_maxrss would count what its parent had before the exec.
    """
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    """Print the costs for the databases that are there."""
    print("\nOne due job among many: time of its claim, and memory of the process")
    print(f"{'database':12} {'jobs':>10} {'us':>8} {'MB':>8} {'time':>8} {'memory':>8}")
    for name, make in available_places().items():
        with make() as few, make() as many:
            least, most = measure(few, many)
        print(f"{name:12} {FEW:>10,} {least.microseconds:>8.0f} {least.megabytes:>8.1f}")
        print(
            f"{name:12} {MANY:>10,} {most.microseconds:>8.0f} {most.megabytes:>8.1f}"
            f" {most.microseconds / least.microseconds:>8.2f} {most.megabytes / least.megabytes:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    print(json.dumps(_claim_again_and_again(sys.argv[1])._asdict()))

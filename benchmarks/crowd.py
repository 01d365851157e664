"""One beat and four on the same crowd of due jobs: how fast together, and how much is in vain."""

import json
import logging
import subprocess
import sys
import time
from statistics import median
from typing import Any, NamedTuple

from benchmarks.brokers import BROKERS, bench_app, empty
from benchmarks.places import Maker, available_places
from benchmarks.walk import _CHANGED, _DUE, _FILL, _INSTANT, JOBS
from celery_sqlbeat import Scheduler
from celery_sqlbeat.model import DueBatch, Plan
from celery_sqlbeat.store.sql.store import SqlStore

BEATS = (1, 4)
WAVES = 3  # after one to warm up
QUIET = 1.0  # seconds without a claim after which a beat ends its wave


class Wave(NamedTuple):
    """What one beat did of a crowd."""

    ended_at: float
    planned: int
    missed: int


def main() -> None:
    """Print the rates for the databases that answer, with Redis."""
    print(f"\n{JOBS:,} jobs due at once, beats together (Redis, fire and forget)")
    print(f"{'database':12} {'beats':>6} {'jobs/s':>8} {'to one':>7} {'in vain':>8}")
    for name, make in available_places().items():
        one = None
        for beats in BEATS:
            rate, in_vain = _measure(make, beats)
            one = one or rate
            print(f"{name:12} {beats:>6} {rate:>8,.0f} {rate / one:>7.2f} {in_vain:>8.1%}", flush=True)


def _measure(make: Maker, beats: int) -> tuple[float, float]:
    with make() as place:
        database = place.dialect().name
        place.by_hand(_FILL[database].format(jobs=JOBS))
        command = [sys.executable, "-m", "benchmarks.crowd", place.url, str(WAVES + 1)]
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(beats)
        ]
        for process in processes:
            _line(process)
        rates, planned, missed = [], 0, 0
        for wave in range(WAVES + 1):
            for process in processes:  # so that each sees the others as living
                _tell(process)
            for process in processes:
                _line(process)
            place.by_hand(_DUE.format(instant=_INSTANT[database]))
            due_at = time.time()
            place.by_hand(_CHANGED)
            done = [Wave(*json.loads(_line(process))) for process in processes]
            if wave:
                rates.append(JOBS / (max(one.ended_at for one in done) - due_at))
                planned += sum(one.planned for one in done)
                missed += sum(one.missed for one in done)
            if sum(one.planned - one.missed for one in done) != JOBS:
                raise AssertionError(f"a crowd was not claimed once, so this is no measurement: {done}")
        for process in processes:
            process.communicate(timeout=60)
        return median(rates), missed / planned


def _tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError("a beat of the crowd has ended")
    return line


def _be_one(url: str, waves: int) -> None:
    """Be one of the beats: at each line that comes, take part in a wave."""
    logging.getLogger("celery_sqlbeat").setLevel(logging.ERROR)
    counts = [0, 0]
    claim = SqlStore.claim

    def counted(self: SqlStore, due: DueBatch, plan: Plan, beat: str, dispatch_seconds: float) -> Any:
        claimed = claim(self, due, plan, beat, dispatch_seconds)
        counts[0] += len(plan.claims)
        counts[1] += len(claimed.missed)
        return claimed

    SqlStore.claim = counted  # type: ignore[method-assign, assignment]
    conf = {"sqlbeat_database_url": url, "sqlbeat_notice_interval": 0.02}
    with bench_app(BROKERS["Redis"], conf) as app:
        scheduler: Any = Scheduler(app)
        scheduler.setup_schedule()
        scheduler.tick()
        membership = scheduler._parts.membership
        print("ready", flush=True)
        for _ in range(waves):
            sys.stdin.readline()
            membership._known = None
            membership.share()
            counts[:] = [0, 0]
            print("ready", flush=True)
            ended_at, before = time.time(), membership.claimed
            while time.time() < ended_at + QUIET or membership.claimed == 0:
                seconds = scheduler.tick()
                if membership.claimed > before:
                    ended_at, before = time.time(), membership.claimed
                time.sleep(min(seconds, 0.01))
            print(json.dumps([ended_at, *counts]), flush=True)
        empty(app)
        scheduler.close()


if __name__ == "__main__":
    _be_one(sys.argv[1], int(sys.argv[2]))

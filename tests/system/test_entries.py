"""What a `beat_schedule` is read as does not depend on the process that reads it."""

import os
import subprocess
import sys

SCRIPT = """
import decimal, enum, functools
from datetime import date, timedelta
from pathlib import PurePosixPath
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab, schedule
from celery_sqlbeat.beat_schedule.entries import read_entries

class Own(crontab):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.made = object()

class Kind(enum.Enum):
    ONE = 1

class Thing:
    pass

entries = {
    "lazy": {"task": "t", "schedule": 5, "args": (BeatLazyFunc(print, {"a", "b", "c"}, key=lambda: 1),)},
    "own": {"task": "t", "schedule": Own(minute={3, 1, 2}), "kwargs": {"s": {"x", "y", "z"}, "f": frozenset("abcdef")}},
    "odd": {"task": "t", "schedule": schedule(5), "args": [Thing(), Kind.ONE, decimal.Decimal("1.5"), date(2027, 1, 1),
            PurePosixPath("/x"), b"x", float("nan"), functools.partial(print, sep=""), {(1, 2): timedelta(1)}, Thing]},
    "Thing %r" % Thing(): {"task": "t", "schedule": 7},
}
code = read_entries(Celery("shop"), entries)
print(code.release, sorted(code.by_key()), sorted(code.entries), code.problems)
"""


def test_fingerprints_are_the_same_in_every_process() -> None:
    seen = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1 and seen.pop().endswith(" []\n")

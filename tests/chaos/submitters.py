"""A process that submits one-offs and cancels some of them, and writes down what it was told.

Run as `python -m tests.chaos.submitters` in the folder of a shop.
"""

import importlib
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import celery_sqlbeat
from celery_sqlbeat.errors import RunHasEnded, SqlbeatError
from tests.chaos.witnesses import write

LEDGER, ENOUGH = "ledger.log", "enough"  # the second is there once nothing more is to be submitted
_KEY_SECONDS, _KEYS = 3, 6  # in each such time all submitters use the same few keys
_KEPT = 20  # runs that may still be cancelled
_PAUSE = 0.15  # seconds between two submissions
_LATEST = 6.0  # seconds of a countdown


def _note(what: str, **facts: Any) -> None:
    write(LEDGER, {"what": what, "at": time.monotonic(), "by": os.getpid(), **facts})


def _submit(beat: Any, mine: list[str]) -> None:
    number = random.randrange(_KEYS)
    has_key = random.random() < 0.6
    key = f"{int(time.time()) // _KEY_SECONDS}-{number}" if has_key else None
    facts: dict[str, Any] = {"countdown": None if random.random() < 0.6 else random.uniform(0.5, _LATEST)}
    if key is not None:
        facts |= {"idempotency_key": key, "ttl": 600}
    task = "chaos.one_off" if number else "chaos.one_off_late"
    try:
        run = beat.submit(task, [0.2 * (number + 1)], max_retries=3, **facts)
    except SqlbeatError as error:
        _note("failed", key=key, why=str(error)[:200])
        return
    _note("submitted", key=key, run=run.id, is_new=run.is_new)
    if run.is_new:
        mine.append(run.id)
        del mine[:-_KEPT]


def _cancel(beat: Any, mine: list[str]) -> None:
    run_id = mine.pop(random.randrange(len(mine)))
    try:
        beat.runs.cancel(run_id, "the storm wants it")
    except RunHasEnded:
        return
    except SqlbeatError as error:
        _note("not cancelled", run=run_id, why=str(error)[:200])
        return
    _note("cancelled", run=run_id)


def main() -> None:
    """Submit until this process is told to stop."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.path.insert(0, os.getcwd())
    beat, mine = celery_sqlbeat.setup(importlib.import_module("shop").app), list[str]()
    print("submitter ready.", flush=True)
    while True:
        time.sleep(_PAUSE * random.uniform(0.5, 1.5))
        if Path(ENOUGH).exists():
            continue
        if mine and random.random() < 0.15:
            _cancel(beat, mine)
        else:
            _submit(beat, mine)


if __name__ == "__main__":
    main()

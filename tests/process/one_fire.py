"""Fire one job with a beat and a worker in this process, and print which modules that crossed.

python -m tests.process.one_fire POOL

It runs where its broker and its database may lie. A first fire loads and connects what later ones
share; the second is the one that is followed.
"""

import _thread
import json
import os
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import celery_sqlbeat

PACKAGE = Path(celery_sqlbeat.__file__).parent.as_posix() + "/"
PATIENCE = 60.0
OTHER_DUTIES = {"sqlbeat-housekeeping", "sqlbeat-cleanup"}  # threads of a beat that fire nothing

crossed: dict[str, set[str]] = defaultdict(set)
followed = threading.Event()
beats_thread: list[int] = []


def follow(frame: FrameType, what: str, _: object) -> None:
    """Note the module of each call, and which side made it."""
    if what != "call" or not followed.is_set() or not frame.f_code.co_filename.startswith(PACKAGE):
        return
    known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # current_thread() makes one up
    if known is None or known.name not in OTHER_DUTIES:
        side = "beat" if threading.get_ident() in beats_thread else "worker"
        crossed[side].add(frame.f_code.co_filename.removeprefix(PACKAGE))


def follow_new_threads() -> None:
    """Follow threads however they are started.

    The package starts native ones where greenlets are about.
    """
    start = _thread.start_new_thread

    def starting(work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> int:
        def run(*inner: Any, **named: Any) -> None:
            sys.setprofile(follow)
            work(*inner, **named)

        return start(run, args, kwargs or {})

    _thread.start_new_thread = threading._start_new_thread = starting  # type: ignore[attr-defined]


def main(pool: str) -> None:
    """Be a worker, with a beat in a thread."""
    follow_new_threads()
    from celery import Celery

    from celery_sqlbeat.brokers import folder_url

    app = Celery("shop", broker=folder_url(Path("broker")), set_as_current=True)
    app.conf.update(
        sqlbeat_database_url="sqlite:///shop.db",
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        beat_schedule={"job": {"task": "shop.job", "schedule": 3600.0}},
    )

    def job() -> None:
        """Do nothing."""

    app.task(name="shop.job")(job)

    def drive() -> None:
        try:
            fire_twice(app)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        print(json.dumps({side: sorted(modules) for side, modules in crossed.items()}), flush=True)
        os._exit(0)

    threading.Thread(target=drive, daemon=True).start()
    sys.setprofile(follow)
    app.worker_main(
        ["worker", "-P", pool, "-c", "1", "--without-mingle", "--without-gossip", "-l", "ERROR", "-n", "one@fire"]
    )


def fire_twice(app: Any) -> None:
    """Be the beat of one job that somebody runs twice."""
    beats_thread.append(threading.get_ident())
    beat = celery_sqlbeat.Scheduler(app, schedule_filename="", lazy=False, max_interval=1)
    handle = celery_sqlbeat.setup(app)

    def tick_until(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end
            beat.tick()
            time.sleep(0.05)

    def succeeded() -> int:
        return sum(run.state == "success" for run in handle.runs.list())

    def follow_ticks(condition: Callable[[], bool]) -> None:
        def asked() -> bool:
            sys.setprofile(None)
            answer = condition()
            sys.setprofile(follow)
            return answer

        followed.set()
        tick_until(asked)
        followed.clear()

    beat.tick()  # it makes the tables
    tick_until(lambda: any(node.kind == "worker" for node in handle.status().processes))
    handle.jobs.run_now("job")
    tick_until(lambda: succeeded() == 1)
    handle.jobs.run_now("job")
    follow_ticks(lambda: succeeded() == 2)


if __name__ == "__main__":
    main(sys.argv[1])

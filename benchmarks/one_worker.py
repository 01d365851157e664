"""One Celery worker in a process of its own, with or without the extension.

How fast it works off what waits for it.

Its statements are counted at the driver; the delay of a start is from the slot in hand to the
hand-over to the pool.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

from benchmarks.places import Place

GREEN = (  # patched before anything else is imported, as the `celery` command does it
    "import gevent.monkey; gevent.monkey.patch_all(); "
    "import runpy; runpy.run_module('benchmarks.one_worker', run_name='__main__')"
)
ANSWER = "measured: "
CONTROL = ("BEGIN", "COMMIT", "ROLLBACK")


class Wish(NamedTuple):
    """What is to be measured."""

    broker_url: str
    queue: str
    database_url: str | None
    """None: without the extension."""
    messages: int
    """So many wait in the queue."""
    pool: str = "prefork"
    concurrency: int = 2
    seconds: float = 0.0
    """Where tasks are long: so long after all have begun the worker is left alone, and its
    statements are counted."""
    conf: dict[str, Any] = {}  # noqa: RUF012 - never changed


class Work(NamedTuple):
    """What one worker has done."""

    rate: float
    """Tasks a second, between a tenth and the last of them."""
    statements: int
    """Sent to the database in that time, BEGIN and COMMIT left out."""
    runs: int
    delays: list[float]
    """Seconds from the slot to the start, in order of size."""
    processor: float
    """Microseconds of the main process per run; it has all of the extension's work."""
    kinds: dict[str, int]
    """How often each block was sent; while tasks are long, in the time that the worker was left
    alone."""


def measure(wish: Wish) -> Work:
    """Start a worker, wait until it has worked off everything, and return what it has measured."""
    how = ["-m", "benchmarks.one_worker"] if wish.pool != "gevent" else ["-c", GREEN]
    command = [sys.executable, *how, json.dumps(wish)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise AssertionError(done.stderr[-4000:])
    answers = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]  # Celery speaks there, too
    return Work(*json.loads(answers[0].removeprefix(ANSWER)))


def make_app(wish: Wish) -> Any:
    """Return the app of the worker and its tasks."""
    from celery import Celery

    app = Celery("shop", broker=wish.broker_url, set_as_current=True)
    app.conf.update(task_default_queue=wish.queue, task_ignore_result=True, worker_send_task_events=False)
    app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False, **wish.conf)

    @app.task(name="shop.report")
    def report(number: int = 0) -> None:
        """Nothing."""

    @app.task(name="shop.nap")
    def nap(seconds: float) -> None:
        time.sleep(seconds)

    return app


class Watch:
    """Follows the worker, and ends it when everything is done."""

    def __init__(self, wish: Wish, statements: list[Any]) -> None:
        self._wish, self._statements = wish, statements
        self.work: Work | None = None
        self.delays: list[float] = []
        self._slots: dict[str, float] = {}

    def run(self) -> None:
        """Watch until the end."""
        from celery.worker import state

        first = self._wish.messages // 10
        began: tuple[float, float, int, int] | None = None
        while (count := state.all_total_count[0]) < self._wish.messages:
            if began is None and count >= first:
                began = (time.perf_counter(), time.process_time(), count, len(self._statements))
                self.delays.clear()  # the first ones waited for a connection
            time.sleep(0.002)
        assert began is not None
        at, processor_at, before, sent_before = began
        seconds, processor = time.perf_counter() - at, time.process_time() - processor_at
        if self._wish.seconds:
            time.sleep(self._wish.seconds / 10)
            sent_before = len(self._statements)
            time.sleep(self._wish.seconds)
        kinds: dict[str, int] = {}
        for text, _ in self._statements[sent_before:]:
            if text not in CONTROL:
                kinds[kind_of(text)] = kinds.get(kind_of(text), 0) + 1
        runs = count - before
        self.work = Work(runs / seconds, sum(kinds.values()), runs, sorted(self.delays), processor / runs * 1e6, kinds)
        os.kill(os.getpid(), signal.SIGTERM if not self._wish.seconds else signal.SIGQUIT)

    def time_admissions(self, holder: Any, name: str) -> None:
        """Note when each message has capacity. Both sides of a ratio pay for this.

        `holder`: a plain worker, or the extension's class, since the extension proves that its
        worker calls it.
        """
        admit = getattr(holder, name)

        def admitted(*args: Any) -> Any:
            self._slots[args[-1].id] = time.perf_counter()
            return admit(*args)

        setattr(holder, name, admitted)

    def time_handovers(self, pool: Any) -> None:
        """Note when the pool has each message."""
        hand_over = pool.apply_async

        def handed_over(target: Any, *args: Any, **options: Any) -> Any:
            since = self._slots.pop(options.get("correlation_id", ""), None)
            if since is not None:
                self.delays.append(time.perf_counter() - since)
            return hand_over(target, *args, **options)

        pool.apply_async = handed_over


_names: dict[str | bytes, str] = {}


def kind_of(text: str | bytes) -> str:
    """Return the name of the block that a statement is."""
    if not _names:
        from celery_sqlbeat.store.sql.session import load

        _names.update({block.encoded: name for name, block in load("postgresql").items()})
    return _names.get(text, str(text[:40]))


def main(wish: Wish) -> Work:
    """Run the worker here."""
    app = make_app(wish)
    statements: list[Any] = []
    watch = Watch(wish, statements)
    if wish.database_url is not None:
        from celery_sqlbeat.worker import extension, install, runtime, store_opening

        place = Place(wish.database_url)
        place.recording = statements
        app.conf.update(sqlbeat_database_url=wish.database_url)
        for module in (runtime, store_opening):
            setattr(module, "open_store", lambda settings: place.store())  # noqa: B010 - for mypy
        watch.time_admissions(extension.Extension, "_admit")
        install.install(app)
    worker = app.Worker(
        pool=wish.pool,
        concurrency=wish.concurrency,
        loglevel="ERROR",
        without_mingle=True,
        without_gossip=True,
        quiet=True,
    )
    if wish.database_url is None:
        watch.time_admissions(worker, "_process_task")
    watch.time_handovers(worker.pool)
    if wish.pool == "gevent":
        from gevent.monkey import get_original

        get_original("_thread", "start_new_thread")(watch.run, ())
    else:
        threading.Thread(target=watch.run, daemon=True).start()
    with contextlib.suppress(SystemExit):
        worker.start()
    assert watch.work is not None
    return watch.work


if __name__ == "__main__":
    asked = Wish(*json.loads(sys.argv[1]))
    print(ANSWER + json.dumps(main(asked)), file=sys.__stdout__, flush=True)  # Celery has put its log in its place

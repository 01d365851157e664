"""The leases of one worker process: its store, the lease manager on it, and the threads of that.

docs/design/0008-worker.md says how leases are kept.
"""

import _thread
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.message_header import Header
from celery_sqlbeat.celery_bridge.tasks import DAY_SECONDS, NO_REPORT, Report, SlotResults
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.environment import Wakeup, original
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model import Node
from celery_sqlbeat.model.retries import Decided
from celery_sqlbeat.store import Store, open_store
from celery_sqlbeat.store.sql.guard import StoreFacts
from celery_sqlbeat.worker.lease import RunLease, WrongStore
from celery_sqlbeat.worker.lease.batching import Timing
from celery_sqlbeat.worker.lease.heartbeats import WaitingRuns
from celery_sqlbeat.worker.lease.manager import BEAT, SERVE, WATCH, LeaseManager
from celery_sqlbeat.worker.lease.outcomes import Then
from celery_sqlbeat.worker.lease.starts import StartQuestion
from celery_sqlbeat.worker.membership import WorkerMembership
from celery_sqlbeat.worker.results import OutcomeRules, TaskResult
from celery_sqlbeat.worker.store_opening import StoreOpening

KEPT_BEYOND_HISTORY = 2  # a run is in the history from its end on, and that may be long after its effects
_AFTER_ERROR = 1.0  # seconds; an error that nobody expected must not become a busy loop
_LONGEST_END = 10.0  # seconds that the end of a worker waits for its outcomes to be written


class WorkerRuntime:
    """Asks for leases and writes outcomes. For any thread; only `drain` and `close` block."""

    def __init__(
        self,
        settings: Settings,
        describe: Callable[[], Node],
        is_configured: bool,
        timing: Timing | None = None,
        received: WaitingRuns | None = None,
        results: SlotResults | None = None,
    ) -> None:
        """`is_configured`: whether the app names a database."""
        self.settings = settings
        self.store_id: str | None = None
        self.lease_manager: LeaseManager | None = None
        """None until the database has answered for the first time."""
        self.results = results
        self._describe = describe
        self._timing = timing or Timing.of(settings)
        self.rules = OutcomeRules(settings)
        self._received = received
        self._stores: list[Store] = []
        self._lease_threads: LeaseThreads | None = None
        self._opening = StoreOpening(settings, is_configured, self._timing.ask_seconds, self._begin)
        self._pid = os.getpid()

    def open(self) -> None:
        """Begin to open the store, in the process that consumes, and only there."""
        self._opening.start()

    def ask(self, header: Header, question: StartQuestion) -> None:
        """Ask whether a message may begin."""
        if self.lease_manager is None and self._opening.keep(header, question):
            return
        if self.lease_manager is not None and self._is_mine(header):
            self.lease_manager.ask(question)
            return
        there = f"store {header.store}, namespace {header.namespace!r}"
        here = f"store {self.store_id}, namespace {self.settings.namespace!r}"
        question.answer(WrongStore(f"it is of {there}, and this worker is on {here}"))

    def is_own(self, header: Header) -> bool:
        """Return whether a message is known to be of this worker's store and namespace."""
        return self.lease_manager is not None and self._is_mine(header)

    def is_for_anybody(self, header: Header) -> bool:
        """Return whether a message that was fired and forgotten belongs to another store."""
        return self._opening.has_no_store if self.lease_manager is None else not self._is_mine(header)

    def _is_mine(self, header: Header) -> bool:
        return header.store == self.store_id and header.namespace == self.settings.namespace

    @property
    def store_facts(self) -> StoreFacts | None:
        """What the tasks of this worker must know of its store; None until it has answered."""
        keep_seconds = KEPT_BEYOND_HISTORY * DAY_SECONDS * self.settings.history_days
        return None if self.store_id is None else StoreFacts(self.store_id, self.settings.namespace, keep_seconds)

    @property
    def is_unavailable(self) -> bool:
        """Whether the database is known to be away: a message keeps no capacity for its answer."""
        # A worker whose first try to open the store goes on knows nothing yet.
        return self._opening.reason is not None if self.lease_manager is None else self.lease_manager.is_unavailable

    def flush_soon(self) -> None:
        """Ask soon for what has gathered: a message could begin now, but for its answer."""
        if self.lease_manager is not None:
            self.lease_manager.flush_soon()

    def withdraw(self, question: StartQuestion) -> None:
        """Answer a question no more."""
        question.answered = None
        if self.lease_manager is not None:
            self.lease_manager.withdraw(question)

    def finish(
        self,
        run_lease: RunLease,
        end: TaskResult,
        told: Report = NO_REPORT,
        then: Then | None = None,
        decided: Decided | None = None,
    ) -> None:
        """Write how a task ended; `decided`: by whom it was known whether it is tried again."""
        if self.lease_manager is not None:  # always: it has made the lease
            if run_lease.run.attempt > 1 and self.results is not None:
                then = partial(self._slot_ended, then)
            ending = self.rules.ending(run_lease, end, told.error, told.traceback, told.errors, decided)
            self.lease_manager.finish(run_lease, ending, then)

    def _slot_ended(self, then: Then | None, is_recorded: bool) -> None:
        if is_recorded and self.results is not None:
            self.results.slot_ended(self._stores[0])
        if then is not None:
            then(is_recorded)

    def unstart(self, run_lease: RunLease, then: Then | None = None) -> None:
        """Give back a run whose body never ran."""
        if self.lease_manager is not None:
            self.lease_manager.unstart(run_lease, then)

    def retrying(self, run_lease: RunLease, seconds: float, then: Then) -> None:
        """Keep the attempt for Celery's own retry in so many seconds."""
        if self.lease_manager is not None:
            self.lease_manager.retrying(run_lease, seconds, then)

    def queues_changed(self) -> None:
        """Register this worker again soon, since something about it has changed."""
        if self.lease_manager is not None:
            self.lease_manager.say_alive_soon()

    def drain(self, seconds: float = _LONGEST_END) -> None:
        """Wait until every outcome is written, but not longer than this."""
        _wait_while(lambda: self.lease_manager is not None and not self.lease_manager.is_idle, seconds)

    def close(self) -> None:
        """Write what is left, record that this worker has stopped, and end the threads."""
        was_open = self._opening.stop()
        if not was_open or os.getpid() != self._pid:
            return
        # Under gevent a driver waits in a green thread, also in the native thread that opens the
        # store: Python may not end in its midst.
        _wait_while(lambda: environment.is_patched() and self._opening.is_running, _LONGEST_END)
        if self._lease_threads is not None:
            if not self._lease_threads.stop(_LONGEST_END):
                events.finish_failed(run_id=None, effect="runs are taken over", error="this worker stops before that")
            try:
                self._lease_threads.lease_manager.leave()
            except StoreError as error:
                events.step_failed(step="register the end of this worker", error=error)
        for store in self._stores:
            store.close()

    def _begin(self, store: Store, store_id: str) -> None:
        """Begin to keep leases; in the native thread that has opened the store."""
        beats = open_store(self.settings)  # a connection of its own, so that no slow start delays a heartbeat
        self._stores += store, beats
        make = partial(self._make_manager, store, beats)
        threads = LeaseThreads(make, original("_thread", "start_new_thread"), original("_thread", "allocate_lock"))

        def install() -> None:
            self._lease_threads, self.store_id, self.lease_manager = threads, store_id, threads.lease_manager

        early = self._opening.done(install)
        if early is None:
            return
        if self._received is not None:
            self._received.check_soon = threads.lease_manager.check_soon
        threads.start()
        for header, question in early:
            self.ask(header, question)

    def _make_manager(self, store: Store, beats: Store, wake: Callable[[str], None]) -> LeaseManager:
        name, interval, clock = self._describe().node_id, self.settings.heartbeat_interval, environment.monotonic
        return LeaseManager(
            store,
            name,
            self._timing,
            clock,
            wake,
            beats,
            WorkerMembership(beats, self._describe, interval, clock),
            environment.lock(),
            self.rules.overdue,
            self._received,
        )


class LeaseThreads:
    """Runs the three steps of a lease manager, each in a native thread that sleeps between them.

    Neither a slow start nor a statement that hangs may delay a heartbeat or the stop of a task.
    """

    def __init__(
        self,
        make: Callable[[Callable[[str], None]], LeaseManager],
        start_new_thread: Callable[..., Any] = _thread.start_new_thread,
        allocate_lock: Callable[[], Any] = _thread.allocate_lock,
    ) -> None:
        """Build the manager by `make`, which is given the function that wakes a step.

        `start_new_thread` and `allocate_lock` are the originals, where `_thread` is patched.
        """
        self._wakeups = {step: Wakeup(allocate_lock) for step in (SERVE, BEAT, WATCH)}
        self._start_new_thread = start_new_thread
        self._is_running = False
        self.lease_manager = make(self.wake)

    def wake(self, step: str) -> None:
        """Let a step begin its next round now."""
        self._wakeups[step].ring()

    def start(self) -> None:
        """Start the threads, in the process that runs tasks: they do not survive a fork."""
        self._is_running = True
        manager = self.lease_manager
        for name, step in {SERVE: manager.serve, BEAT: manager.beat, WATCH: manager.watch}.items():
            self._start_new_thread(self._run, (step, self._wakeups[name]))

    def stop(self, seconds: float) -> bool:
        """Write what is to be written, for at most so long, then end the threads.

        The caller waits meanwhile, leases are extended, and tasks are stopped. False is returned
        if something is left.
        """
        self.lease_manager.close()
        end = environment.monotonic() + seconds
        while not self.lease_manager.is_idle and environment.monotonic() < end:
            time.sleep(0.01)
        self._is_running = False
        for wakeup in self._wakeups.values():
            wakeup.ring()
        return self.lease_manager.is_idle

    def _run(self, step: Callable[[], float], wakeup: Wakeup) -> None:
        while self._is_running:
            try:
                seconds = step()
            except Exception as error:
                events.fault_caught(doing="keep leases", error=error)
                seconds = _AFTER_ERROR
            wakeup.sleep(seconds)


def _wait_while(condition: Callable[[], bool], seconds: float) -> None:
    sleep = original("time", "sleep")  # gevent allows no green one where a signal ends the worker
    end = environment.monotonic() + seconds
    while condition() and environment.monotonic() < end:
        sleep(0.01)

"""Publish the one-offs that this process has claimed, and record that in the background.

Whatever fails here, the rows are there: a beat takes the claims over when their dispatch time-out
has ended.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from celery_sqlbeat import environment, events
from celery_sqlbeat.beat.known_workers import KnownWorkers
from celery_sqlbeat.beat.recording import PublishRecorder
from celery_sqlbeat.celery_bridge.app import Routed, differ_for_certain, fingerprint
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.errors import BrokerUnavailable, StoreError
from celery_sqlbeat.model import Claim
from celery_sqlbeat.model.lifecycle import Backoff
from celery_sqlbeat.publish.publisher import Published, Publisher
from celery_sqlbeat.store import Store

_RECORD_SHARE = 0.3  # of the dispatch time-out, kept for recording, as beats do
_CONNECT_SECONDS = 2.0  # for the broker; the caller waits
_AWAY_SECONDS = 5.0  # for which a broker that was away is left to the beats
_GATHER_SECONDS = 0.2  # for which marks wait for others; most runs have begun by then, and need none
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 2.0  # seconds between tries while the database is away
_EXIT_SECONDS = 2.0  # for which the end of the process waits for the marks
_MOST_WAITING = 5000  # claims that wait for their mark; what comes beyond is left to the beats


class Submitter:
    """What a process needs to publish its own submissions; it has no row among the nodes."""

    def __init__(self, app: Any, store: Store, settings: Settings) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self._publisher = Publisher(app, patience=settings.statement_timeout)
        self._publisher.identify(store.check_schema().store_id, settings.namespace)
        self._workers = KnownWorkers(store, settings.worker_memory, settings.worker_alive)
        self._broker = fingerprint(app.connection_for_write())
        self._told_broker: str | None = None
        self._begin_process()
        _SUBMITTERS.add(self)

    def _begin_process(self) -> None:
        """Begin anew, as in a child process: neither threads nor what they hold cross a fork."""
        self._pid = os.getpid()
        self.name = f"submitter@{socket.gethostname()}/{self._pid}/{environment.Ids().random_id()[:8]}"
        self._publishing = threading.Lock()  # green where the threads are
        self._guard, self._recording = environment.lock(), environment.lock()
        self._later = environment.Later()
        self._published: list[tuple[Published, float]] = []
        self._is_scheduled = False
        self._failures = 0
        self._away_until = 0.0
        backoff = Backoff(self._settings.retry_base, self._settings.retry_factor, self._settings.retry_max)
        self._recorder = PublishRecorder(self._store, self._workers, backoff=backoff, tells_lost=False)

    def in_this_process(self) -> Submitter:
        """Return itself, begun anew where this is a child of the process that made it."""
        if self._pid != os.getpid():
            self._begin_process()
        return self

    def publishes(self, call: Routed) -> bool:
        """Return whether this process publishes such a call itself; else the beats do."""
        if environment.monotonic() < self._away_until or self._waiting() >= _MOST_WAITING:
            return False
        try:
            return self._has_broker_of_beats() and not (
                self._workers.lacks(call.task_name)
                and self._workers.nobody_knows(self._publisher.queue_of(call), call.task_name)
            )
        except StoreError as error:  # the submission itself may be luckier
            events.step_failed(step="read the workers", error=error)
            return False

    def _has_broker_of_beats(self) -> bool:
        other = next((each for each in self._workers.brokers() if differ_for_certain(self._broker, each)), None)
        if other is not None and other != self._told_broker:
            events.conflict_found(
                reason=f"this process sends to the broker {self._broker}, but the beats of the namespace to {other}",
                remedy="set the same broker_url for both; until then the beats send what is submitted here",
            )
        self._told_broker = other
        return other is None

    def connect(self) -> bool:
        """Connect to the broker before anything is claimed; return whether that worked."""
        try:
            with self._publishing:
                self._publisher.connect(_CONNECT_SECONDS)
        except BrokerUnavailable as error:
            self._away_until = environment.monotonic() + _AWAY_SECONDS
            events.broker_unavailable(error=error, retry_seconds=_AWAY_SECONDS)
            return False
        return True

    def publish(self, claims: Sequence[Claim], until: float) -> None:
        """Send claims until their dispatch time-out nears; never raises.

        `until`: when the dispatch time-out ends.
        """
        try:
            unleasable = self._workers.unleasable()
            sent = [claim._replace(exclusive=claim.task_name not in unleasable) for claim in claims]
            send_until = until - _RECORD_SHARE * self._settings.dispatch_timeout
            with self._publishing:
                published = self._publisher.send(sent, send_until, self._leases)()
        except Exception as error:  # a beat takes them over
            events.fault_caught(doing="publish one-offs", error=error, subject=f"{len(claims)} claims")
            return
        with self._guard:
            self._published.append((published, until))
        self._schedule(_GATHER_SECONDS)

    def _leases(self, queue: str | None) -> bool:
        try:
            if not self._workers.leases(queue):
                self._workers.read_again()  # a worker may have come: what is forgotten is not tried again
            return self._workers.leases(queue)
        except StoreError:  # a lease that nobody extends ends; what is forgotten is not tried again
            return True

    def _waiting(self) -> int:
        return sum(len(published.confirmed) for published, _ in self._published) + sum(
            len(record.claims) for record in self._recorder.pending
        )

    def _schedule(self, seconds: float) -> None:
        with self._guard:
            must, self._is_scheduled = not self._is_scheduled, True
        if must:
            self._later.after(seconds, self._record_later)

    def _record_later(self) -> None:
        with self._guard:
            self._is_scheduled = False
        seconds = self._record()
        if seconds is not None:
            self._schedule(seconds)

    def _record(self) -> float | None:
        """Record what was published; return the seconds until the next try, where some is left."""
        with self._recording:
            with self._guard:
                published, self._published = self._published, []
            if published:
                batches, ends = zip(*published, strict=True)
                self._recorder.add(_joined(batches), min(ends))
            try:
                self._recorder.record()
            except Exception as error:
                self._failures += 1
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures - 1, 10))
                events.step_failed(step="record what was published", error=error)
                return pause
            self._failures = 0
            left = self._recorder.seconds_left
            return None if left is None else max(left, 0.05)

    def flush(self, seconds: float = _EXIT_SECONDS) -> None:
        """Record what was published, and wait for so many seconds at most."""
        if self._pid != os.getpid():
            return
        end = environment.monotonic() + seconds
        pause = threading.Event()
        while (left := self._record()) is not None and environment.monotonic() + left < end:
            pause.wait(left)

    def close(self) -> None:
        """Record what was published, and close the connection to the broker."""
        self.flush()
        if self._pid == os.getpid():
            with self._publishing:
                self._publisher.close()


def _joined(batches: Sequence[Published]) -> Published:
    joined = Published([], [], [], [])
    for batch in batches:
        joined.confirmed.extend(batch.confirmed)
        joined.failed.extend(batch.failed)
        joined.declined.extend(batch.declined)
        joined.refused.extend(batch.refused)
    return joined


_SUBMITTERS: weakref.WeakSet[Submitter] = weakref.WeakSet()


def _at_exit() -> None:
    for submitter in list(_SUBMITTERS):
        environment.call_safely(submitter.flush)


atexit.register(_at_exit)

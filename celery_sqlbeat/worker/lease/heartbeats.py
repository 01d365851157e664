"""Tell the database at intervals what this worker has: its leases and its waiting messages.

A message waits for a token of its rate limit, for its eta or for capacity. Past its start deadline
a beat takes it for lost, so the deadline is postponed.
"""

from collections.abc import Callable, Iterable
from typing import Any

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.message_header import Header
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model import Unbegun
from celery_sqlbeat.model.one_offs import Asked
from celery_sqlbeat.store import Store
from celery_sqlbeat.worker.lease import LeaseTable, Phase, RunLease, Stop
from celery_sqlbeat.worker.lease.batching import Timing
from celery_sqlbeat.worker.lease.places import Places

Delivery = tuple[str, str, int, int]

FIRST_SECONDS = 1.0  # most messages begin within this time, and cost no statement
MOST_AT_ONCE = 500  # rows of a statement
_MOST_BEGUN = 2000  # remembered starts: a copy of one is dropped before it takes a token of its rate limit
_MOST_MISSES = 3  # answers without a deadline, after which a run is taken to have none


class _Held:
    """One message that waits."""

    __slots__ = ("interval", "message", "misses", "next_at")

    def __init__(self, message: Any, interval: float, next_at: float) -> None:
        self.message = message
        self.interval = interval
        self.next_at = next_at
        self.misses = 0


class WaitingRuns:
    """The messages that this worker has received and not begun. Used by any thread."""

    def __init__(self, timing: Timing, clock: Callable[[], float]) -> None:
        self._timing = timing
        self._clock = clock
        self._lock = environment.lock()
        self._held: dict[Delivery, _Held] = {}
        self._begun: dict[Delivery, None] = {}
        self._checks_at = float("inf")
        self.check_soon: Callable[[], None] = lambda: None
        """Called where a message has come whose deadline is due before the next step."""

    def came(self, header: Header, message: Any) -> bool:
        """Note a message; return False for a copy of one that waits or has begun here."""
        interval = self._timing.interval(header.lease_seconds or self._timing.lease_seconds)
        at = self._clock() + min(FIRST_SECONDS, interval)
        key = header.delivery
        with self._lock:
            held = self._held.get(key)
            if key in self._begun or (held is not None and not held.message.acknowledged):
                return False
            self._held[key] = _Held(message, interval, at)
            is_sooner, self._checks_at = at < self._checks_at, min(at, self._checks_at)
        if is_sooner:
            self.check_soon()
        return True

    def begun(self, header: Header) -> None:
        """Note that its run has begun: from here on it has a lease, and no copy can begin."""
        with self._lock:
            self._held.pop(header.delivery, None)
            self._begun[header.delivery] = None
            if len(self._begun) > _MOST_BEGUN:
                del self._begun[next(iter(self._begun))]

    def leave(self) -> None:
        """Forget what waits, since the connection has ended: the broker delivers it again."""
        with self._lock:
            self._held.clear()

    def due(self) -> list[Unbegun]:
        """Return the runs whose deadlines are to be postponed now."""
        now = self._clock()
        with self._lock:
            for key in [key for key, held in self._held.items() if held.message.acknowledged]:
                del self._held[key]  # dropped, revoked, expired or given back
            due = [key for key, held in self._held.items() if held.next_at <= now][:MOST_AT_ONCE]
        return [Unbegun(*key) for key in due]

    def moved(self, asked: Iterable[Unbegun], moved: Iterable[str]) -> None:
        """Note the answer of the database: which of these runs had a deadline."""
        with_deadline = set(moved)
        with self._lock:
            for unbegun in asked:
                held = self._held.get((unbegun.run_id, unbegun.claim_id, unbegun.fence, unbegun.celery_retries))
                if held is not None:
                    held.misses = 0 if unbegun.run_id in with_deadline else held.misses + 1
                    held.next_at = self._clock() + held.interval if held.misses < _MOST_MISSES else float("inf")

    def seconds_left(self, least: float = 0.0) -> float:
        """Return the seconds until the next one is due, `least` at least."""
        with self._lock:
            at = min((held.next_at for held in self._held.values()), default=float("inf"))
            self._checks_at = max(at, self._clock() + least)
            return max(0.0, self._checks_at - self._clock())


_AFTER_ERROR = 1.0  # seconds


class Postponing:
    """Postpones the start deadlines of waiting messages. Used by one thread."""

    def __init__(self, store: Store, received: WaitingRuns) -> None:
        self._store = store
        self._received = received

    def step(self) -> float:
        """Postpone what is due; return the seconds until the next step."""
        due = self._received.due()
        if due:
            try:
                self._received.moved(due, self._store.postpone(due))
            except StoreError as error:
                events.step_failed(step="postpone", subject=f"{len(due)} messages that wait here", error=error)
                return self._received.seconds_left(_AFTER_ERROR)
        return 0.0 if len(due) == MOST_AT_ONCE else self._received.seconds_left()


_SHARE_TO_JOIN = 0.5  # of the interval: a lease that is due that soon shares the statement of the others
_SHARE_TO_RETRY = 0.125  # of the interval, until the try after a failure
_SHORTEST_RETRY, _LONGEST_RETRY = 0.05, 1.0  # seconds


class Heartbeats:
    """Extends all leases of a process by one statement, and stops tasks whose lease is lost."""

    def __init__(self, store: Store, leases: LeaseTable, cancel: Callable[[RunLease, Asked], None]) -> None:
        """`cancel` is told of a run that somebody has cancelled, each time."""
        self._store = store
        self._leases = leases
        self._cancel = cancel
        self._places = Places(store, "")

    def step(self) -> float:
        """Extend what is due, and what is due soon; return the seconds until the next heartbeat."""
        now = self._leases.clock()
        held = [run_lease for run_lease in self._leases.all() if run_lease.is_extended]
        if any(_at(run_lease) <= now for run_lease in held):
            share = _SHARE_TO_JOIN
            self._extend(
                [
                    run_lease
                    for run_lease in held
                    if run_lease.is_recalled or now >= run_lease.sent_at + share * run_lease.interval
                ]
            )
        return max(
            0.0,
            min((_at(run_lease) for run_lease in held if run_lease.is_extended), default=float("inf"))
            - self._leases.clock(),
        )

    def _extend(self, due: list[RunLease]) -> None:
        with self._leases.guard:
            # Outcomes of runs that ended meanwhile are on their way; those that end later see
            # `beating`.
            due = [run_lease for run_lease in due if run_lease.is_extended]
            for run_lease in due:
                run_lease.beating, run_lease.is_recalled = True, False
        try:
            self._send(due)
        finally:
            for run_lease in due:
                run_lease.beating = False

    def _send(self, due: list[RunLease]) -> None:
        rows = {run_lease.run.run_id: (run_lease.run, run_lease.run.lease_seconds) for run_lease in due}
        sent_at = self._leases.clock()
        try:
            lost, busy, asked = self._store.extend(list(rows.values()))
        except StoreError as error:
            self._try_again(due)
            events.heartbeat_failed(leases=len(rows), reason=error)
            return
        if busy:
            passed_by = [run_lease for run_lease in due if run_lease.run.run_id in busy]
            # An outcome or a mark locks a row for a moment; only a second try tells that somebody
            # keeps it.
            if any(run_lease.beat_again_at > run_lease.beat_at for run_lease in passed_by):
                events.heartbeat_failed(leases=len(busy), reason="somebody keeps their rows locked")
            self._try_again(passed_by)
        events.leases_extended(leases=len(rows) - len(lost) - len(busy), seconds=self._leases.clock() - sent_at)
        self._places.extend(due)
        for run_lease in due:
            if run_lease.run.run_id in lost:
                self._lost(run_lease)
            elif run_lease.run.run_id not in busy:
                run_lease.extended(sent_at)
                if run_lease.run.run_id in asked:
                    self._cancel(run_lease, asked[run_lease.run.run_id])

    def _try_again(self, failed: Iterable[RunLease]) -> None:
        now = self._leases.clock()
        for run_lease in failed:
            run_lease.beat_again_at = now + min(
                max(_SHORTEST_RETRY, _SHARE_TO_RETRY * run_lease.interval), _LONGEST_RETRY
            )

    def _lost(self, run_lease: RunLease) -> None:
        with self._leases.guard:
            run_lease.is_extended = False  # where its outcome is on its way, the answer to that is the last word
            was = run_lease.phase
            callback = run_lease.must_stop(Stop.LOST) if was in (Phase.LEASED, Phase.BEGUN) else None
        if was is Phase.LEASED:
            self._leases.remove(run_lease)
        elif was is Phase.BEGUN:
            events.lease_lost(job_name=run_lease.run.job_name, run_id=run_lease.run.run_id, reason="taken over")
        call(callback)


def _at(run_lease: RunLease) -> float:
    return max(run_lease.beat_at, run_lease.beat_again_at)


def call(callback: Callable[[], None] | None) -> None:
    """Call back; report an error there, which must not end the heartbeats."""
    if callback is not None:
        try:
            callback()
        except Exception as error:
            events.fault_caught(doing="stop a task", error=error)

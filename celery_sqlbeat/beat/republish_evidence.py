"""Decide whether a message may be published again: not if a worker without leases may have it.

Workers take seconds to answer, so they and the broker are asked in a thread: regularly while leased
messages are sent, and when one was not taken in time.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import NamedTuple

from celery_sqlbeat import environment, events
from celery_sqlbeat.beat.evidence import Evidence, Heartbeats, Reading, WorkerRegister, judge_evidence, register
from celery_sqlbeat.beat.membership import BeatMembership
from celery_sqlbeat.celery_bridge.inspect_workers import QueueConsumers
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model import HeldLease

KEY = "others"
"""Under this key a beat's row tells when it saw a consumer of a queue that may keep no leases."""
_FRESH_SECONDS = 60.0  # for which a count is used: the next heartbeats of workers come within it
_WATCH_SECONDS = 30.0  # between two counts at a queue that leased messages are sent to
_READ_SECONDS = 0.5  # between two readings of the rows of workers and beats
_MARGIN = 1.0  # by which a count must be younger than a message: smaller jumps are not noticed
_RETRY_SECONDS = 2.0  # between two questions while the broker cannot be asked
_LONGEST_FAILURE = 3600.0  # without a decision: the broker may never answer
_CONFIRM_SECONDS = 5.0  # after which a stranger is real: a client that inspects is gone by then
_CONFIRM_LATEST_SECONDS = 10.0  # after which a second count shows no longer that it was a moment's


_REMEDY = "if the message was lost, its slot goes on by itself at its last deadline: docs/guarantees.md has the rules"

AskConsumers = Callable[[Iterable[str]], Mapping[str, QueueConsumers]]


class RepublishAnswer(Enum):
    """What may be done with a message that was not taken in time."""

    PUBLISH = "publish it again"
    LEAVE = "leave it to a worker without the extension"
    WAIT = "wait, and publish nothing"


class _Count:
    """A count of the consumers of a queue, and the readings of the workers around it."""

    def __init__(self, consumers: QueueConsumers, before: Reading, last_at: float) -> None:
        """Hold a count; the reading after it follows.

        `before`: the reading from before the question. `last_at`: when the previous count was asked
        for, or minus infinity.
        """
        self.consumers, self.before, self.last_at = consumers, before, last_at
        self.since: Reading | None = None
        """The first reading after the count."""


class _Failure(NamedTuple):
    """The first and the last of the vain questions for a queue, by the monotonic clock."""

    since: float
    at: float


class RepublishEvidence:
    """Knows consumers of queues that may keep no leases. Used by the thread of the tick alone."""

    def __init__(
        self,
        membership: BeatMembership,
        ask_consumers: AskConsumers,
        memory: float,
        republishes: bool = True,
        clock: Callable[[], float] = environment.monotonic,
        start: Callable[[Callable[[], None]], object] | None = None,
        alive_seconds: float = 90.0,
    ) -> None:
        """Know nothing yet. Without `republishes` nothing is ever published again.

        `memory`, `alive_seconds`: as for workers. `start`: begins a thread.
        """
        self._membership = membership
        self._ask_consumers = ask_consumers
        self._memory = memory
        self._republishes = republishes
        self._clock = clock
        self._start = start or _in_thread
        self._alive_seconds = alive_seconds
        self._counts: dict[str, _Count] = {}
        self._asked_at: dict[str, float] = {}
        self._answered: dict[str, float] = {}
        """When the last answered question was asked."""
        self._failures: dict[str, _Failure] = {}
        self._latest: Reading | None = None
        self._heartbeats = Heartbeats()
        self._suspected: dict[str, tuple[float, datetime]] = {}
        """When a count first showed a stranger, by this clock and by the server's."""
        self._seen: dict[str, datetime] = {}
        self.withheld: dict[str, str] = {}
        """By queue, why the last copy was withheld that was due."""
        self._wanted: set[str] = set()
        self._is_asking = False
        self._others: tuple[float, list[Mapping[str, object]]] | None = None
        membership.tell(KEY, lambda: {queue: at.isoformat() for queue, at in dict(self._seen).items()})

    def watch(self, queues: Iterable[str | None]) -> None:
        """Count from time to time at queues that leased messages are sent to; never raises."""
        now = self._clock()
        try:
            for queue in queues if self._republishes else ():
                if queue is not None and now - self._asked_at.get(queue, -math.inf) >= _WATCH_SECONDS:
                    self._ask(queue)
        except StoreError as error:
            events.noted(topic="consumers of queues", text=error)

    def consume(self, queue: str | None) -> bool | None:
        """Return whether a consumer of this queue keeps no leases; None while that is unknown."""
        if queue is None:
            return True
        count = self._find(queue)
        if count is None:
            self._retry(queue)
            return None
        answer = judge_evidence(queue, count.consumers, self._register(queue, count), _FRESH_SECONDS)
        return answer in (Evidence.PLAIN, Evidence.STRANGERS)

    def may_republish(self, queue: str, lease: HeldLease, sent_at: float) -> RepublishAnswer | None:
        """Return what may be done with a message of this queue; None while that is unknown.

        `sent_at`: when the statement was sent that found the lease ended, by the monotonic clock.
        """
        if not self._republishes:
            return self._wait(queue, 'sqlbeat_republish is "never"')
        count = self._find(queue)
        if count is None or not self._is_younger(count, lease, sent_at):
            self._retry(queue)
            return self._wait(queue, Evidence.SILENCE.value) if self._has_failed_for_long(queue) else None
        consumers = count.consumers
        # Counted to when the question was asked, a message is never taken for younger than it is.
        counted_at = lease.now + timedelta(seconds=consumers.counted_at - sent_at)
        out_since = lease.claimed_at or lease.published_at or lease.now
        answer = self._judged(queue, count, (counted_at - out_since).total_seconds(), counted_at)
        if answer is None:
            return None
        if answer is Evidence.PLAIN:
            return RepublishAnswer.LEAVE
        if answer is not Evidence.KEPT:
            return self._wait(queue, answer.value)
        seen_at = self._seen_at(queue)
        if seen_at is not None:
            is_remembered = (lease.now - seen_at).total_seconds() < self._memory
            if seen_at >= out_since or (is_remembered and not consumers.is_counted):
                return self._wait(queue, f"{Evidence.STRANGERS.value}, or did at {seen_at:%Y-%m-%d %H:%M:%S} UTC")
        if consumers.may_hold(lease.run_id):
            return self._wait(queue, f"{consumers.waiting} messages wait in it, and it may be one of them")
        self.withheld.pop(queue, None)
        return RepublishAnswer.PUBLISH

    def _retry(self, queue: str) -> None:
        """Count again, with a pause while the broker cannot be asked."""
        failure = self._failures.get(queue)
        if failure is None or self._clock() - failure.at >= _RETRY_SECONDS:
            self._ask(queue)

    def _has_failed_for_long(self, queue: str) -> bool:
        """Return whether the broker could not be asked for so long that waiting has no point."""
        failure = self._failures.get(queue)
        if failure is None or self._clock() - failure.at >= _RETRY_SECONDS:
            return False
        return failure.at - failure.since >= _LONGEST_FAILURE

    def _find(self, queue: str) -> _Count | None:
        """Return the last count at a queue, if it is still fresh."""
        count = self._counts.get(queue)
        return count if count is not None and self._clock() - count.before.sent_at <= _FRESH_SECONDS else None

    def _is_younger(self, count: _Count, lease: HeldLease, sent_at: float) -> bool:
        """Return whether the count is younger than the last copy, by a clock that was not set."""
        before = count.before
        # A worker that came after an earlier count may have taken a copy. What somebody wrote into
        # `LockedAt` by hand may be no instant.
        sent = [at for at in (lease.published_at, lease.locked_at) if isinstance(at, datetime)]
        is_later = bool(sent) and all((before.now - at).total_seconds() > _MARGIN for at in sent)
        return is_later and before.agrees(lease.now, sent_at, self._clock())

    def _judged(self, queue: str, count: _Count, age: float, counted_at: datetime) -> Evidence | None:
        consumers = count.consumers
        answer = judge_evidence(queue, consumers, self._register(queue, count), max(0.0, age))
        if answer is Evidence.STRANGERS:
            since, _ = self._suspected.setdefault(queue, (consumers.counted_at, counted_at))
            if consumers.counted_at - since < _CONFIRM_SECONDS:
                if self._clock() - consumers.counted_at >= _CONFIRM_SECONDS:
                    self._ask(queue, notes=False)
                return None
        elif answer is not Evidence.UNDECIDED and (suspected := self._suspected.pop(queue, None)) is not None:
            since, seen_at = suspected
            if count.before.sent_at - since > _CONFIRM_LATEST_SECONDS:
                self._remember(queue, seen_at)
        if answer in (Evidence.STRANGERS, Evidence.PLAIN):
            self._remember(queue, counted_at)
        return None if answer is Evidence.UNDECIDED else answer

    def _remember(self, queue: str, at: datetime) -> None:
        """Remember a stranger, never at an earlier instant: the clock may have been set back."""
        self._seen[queue] = max(at, self._seen.get(queue, at))

    def _seen_at(self, queue: str) -> datetime | None:
        """Return when a beat last saw a stranger at a queue."""
        if self._others is None or self._clock() - self._others[0] >= _READ_SECONDS:
            self._others = self._clock(), self._membership.told_by_others(KEY)
        told = [_instant(each.get(queue)) for each in self._others[1]]
        return max((at for at in (*told, self._seen.get(queue)) if at is not None), default=None)

    def _register(self, queue: str, count: _Count) -> WorkerRegister:
        """Return the workers at the instant of this count."""
        latest = self._latest
        is_old = latest is None or self._clock() - latest.sent_at >= _READ_SECONDS
        if latest is None or is_old or latest.sent_at < count.consumers.counted_at:
            latest = self._read()
        count.since = count.since or latest
        return register(queue, count.before, count.since, latest, self._heartbeats, self._alive_seconds)

    def _read(self) -> Reading:
        """Read the workers anew."""
        self._latest = self._membership.workers()
        self._heartbeats.saw(self._latest)
        return self._latest

    def _wait(self, queue: str, reason: str) -> RepublishAnswer:
        if self.withheld.get(queue) != reason:
            self.withheld[queue] = reason
            events.advice(
                topic="republish",
                text=f"what was not taken in time from queue {queue} is not sent once more: {reason}",
                remedy=_REMEDY,
            )
        return RepublishAnswer.WAIT

    def _note(self, queue: str) -> None:
        """Remember a stranger of the last count: it may have taken a message, and be gone later."""
        count = self._counts.get(queue)
        if count is None:
            return
        consumers, known = count.consumers, self._register(queue, count)
        # A worker that took a message since the count before may be busy with it.
        answer = judge_evidence(queue, consumers, known, consumers.counted_at - count.last_at)
        if answer in (Evidence.STRANGERS, Evidence.PLAIN):
            # By the clock as it was then: it may have been set since.
            self._remember(queue, count.before.now + timedelta(seconds=consumers.counted_at - count.before.sent_at))

    def _ask(self, queue: str, notes: bool = True) -> None:
        """Count once more; until then nothing is known."""
        if notes:
            self._note(queue)
        self._counts.pop(queue, None)
        self._wanted.add(queue)
        if not self._is_asking:
            before = self._read()
            self._is_asking = True
            wanted, self._wanted = self._wanted, set()
            last_at = {each: self._answered.get(each, -math.inf) for each in wanted}
            self._asked_at |= dict.fromkeys(wanted, before.sent_at)
            self._start(partial(self._find_out, before, last_at))

    def _find_out(self, before: Reading, last_at: Mapping[str, float]) -> None:
        """Ask from a thread, and keep the answers."""
        try:
            answers = self._ask_consumers(last_at)
        except Exception as error:  # the broker is unavailable
            self._failed(last_at, error)
        else:
            self._counts |= {queue: _Count(consumers, before, last_at[queue]) for queue, consumers in answers.items()}
            self._answered |= dict.fromkeys(answers, before.sent_at)
            for queue in answers:
                self._failures.pop(queue, None)
        self._wanted.difference_update(last_at)  # asked for meanwhile
        self._is_asking = False

    def _failed(self, queues: Collection[str], error: Exception) -> None:
        now = self._clock()
        if any(queue not in self._failures for queue in queues):
            events.noted(topic=f"consumers of {', '.join(queues)}", text=error)
        for queue in queues:
            known = self._failures.get(queue)
            self._failures[queue] = _Failure(known.since if known else now, now)


def _instant(text: object) -> datetime | None:
    try:
        instant = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return instant if instant is not None and instant.tzinfo is not None else None


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="sqlbeat-evidence", daemon=True).start()

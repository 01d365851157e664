"""When a beat has something to do: the deadlines that it read last, and how long it may sleep."""

from collections.abc import Callable
from datetime import datetime

from celery_sqlbeat import environment
from celery_sqlbeat.beat_schedule.sync import EntryCalls
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import NextDeadlines

_HAIR_SECONDS = 0.0001  # clocks round: a claim just before the server's instant would find nothing
_LAG_SECONDS = 0.050  # spacing and claim of another beat fit in; a dead beat's slot is so late
_LAG_LASTS_SECONDS = 1.0  # slots that are further apart find every beat on time
_NEAR_SECONDS = 1.0  # about as long as an answer of the broker is trusted
_SPACING_SECONDS = 0.013  # between two walks: under load a few jobs share a claim
_LONGEST_SPACING = 1.0  # where others hold the due rows, or leases may not be taken yet
# So that of beats that sleep until one instant not always the same wins: about what a claim takes
# from its read to its write.
_SPREAD_SECONDS = 0.002
_JUMP_SECONDS = 1.0  # two clocks that drift by more between two readings: one was set or stood still
# The end of a run may decide what is due next, and no beat can foresee it: it is noticed within a
# tenth of the time in which nothing has happened.
_SOONEST_NOTICE, _LATEST_NOTICE, _NOTICE_SHARE = 0.05, 1.0, 0.1  # seconds, seconds


class WakeSnapshot:
    """The next deadlines as of one reading, with its instants on this process's clock."""

    def __init__(self, deadlines: NextDeadlines, sent_at: float, clock: Callable[[], float]) -> None:
        self.deadlines = deadlines
        self.starts_at, self.ends_at = deadlines.starts_at(), deadlines.ends_at()
        self.sent_at = sent_at
        self._answered_at = clock()
        self._clock = clock

    def seconds_until(self, instant: datetime) -> float:
        """Return the seconds until the instant has come for certain on the server's clock."""
        passed = self._clock() - self._answered_at
        return (instant - self.deadlines.now).total_seconds() + _HAIR_SECONDS - passed

    def has_come(self, instant: datetime | None, lag: float = 0.0) -> bool:
        """Return whether the instant had come at the reading, or has come for certain since."""
        if instant is None:
            return False
        had_come = (self.deadlines.now - instant).total_seconds() >= lag
        return had_come or self.seconds_until(instant) + lag <= 0.0


class ContentionBackoff:
    """Makes a beat late on purpose after a lost race: not all beats need to wake for each slot."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock()

    def won(self) -> None:
        """Be on time again: this beat has claimed something."""
        self._until = self._clock()

    def lost(self) -> None:
        """Lag for a while, and claim what is left by then: another beat was faster."""
        self._until = self._clock() + _LAG_LASTS_SECONDS

    def lag(self, seconds: float = 0.0) -> float:
        """Return the lag, in seconds, for a slot that is due in so many seconds."""
        return _LAG_SECONDS if self._clock() + max(0.0, seconds) < self._until else 0.0


class ReclaimGuard:
    """Decides whether leases and claims may be taken from their holders.

    After an outage, or a jump of the server's clock, living workers get the time to extend their
    leases first, and living beats the time to publish and record their claims.
    """

    def __init__(
        self,
        patience_seconds: float,
        claim_seconds: float,
        longest_absence: float,
        clock: Callable[[], float] = environment.monotonic,
    ) -> None:
        """Begin to wait.

        `claim_seconds`: how long a beat may publish a claim, on its own monotonic clock.
        """
        self._patience = patience_seconds
        self._claim_seconds = claim_seconds
        self._longest_absence = longest_absence
        self._clock = clock
        self._seen: tuple[datetime, float] | None = None
        self._is_away = False
        self._lost_at = clock()  # a new beat does not know what was before it

    def saw(self, server_now: datetime, sent_at: float) -> None:
        """Compare the server's clock with the monotonic instant at which the statement was sent."""
        # A beat cannot know what happened to the server's clock before its first reading.
        if self._is_away or self._seen is None or self._was_absent(*self._seen, server_now, sent_at):
            self.lost()
        self._seen, self._is_away = (server_now, sent_at), False

    def _was_absent(self, seen_there: datetime, seen_here: float, server_now: datetime, sent_at: float) -> bool:
        passed_there = (server_now - seen_there).total_seconds()
        passed_here = sent_at - seen_here
        return abs(passed_there - passed_here) > _JUMP_SECONDS or passed_here > self._longest_absence

    def away(self) -> None:
        """Note that the database did not answer: it may not have answered the workers either."""
        self._is_away = True

    def lost(self) -> None:
        """Begin to wait: each living worker gets the chance to extend its lease."""
        self._lost_at = self._clock()

    def may_reclaim(self) -> bool:
        """Return whether living workers have had the time to extend their leases."""
        return self._clock() >= self._lost_at + self._patience

    def may_take_claims(self) -> bool:
        """Return whether living beats have had the time to publish and record their claims."""
        return self._clock() >= self._lost_at + self._claim_seconds


class Deadlines:
    """Reads the deadlines of one beat from the store, and turns them into wake-ups."""

    def __init__(
        self,
        store: Store,
        calls: EntryCalls,
        reclaim_guard: ReclaimGuard,
        poll_interval: float,
        notice_interval: float,
        clock: Callable[[], float] = environment.monotonic,
        rnd: Callable[[], float] = environment.chance,
    ) -> None:
        """Read nothing yet; the first tick does."""
        self._store = store
        self._calls = calls
        self._reclaim_guard = reclaim_guard
        self._poll = poll_interval
        self._notice = notice_interval or poll_interval
        self._clock = clock
        self._random = rnd
        self.on_change: Callable[[], None] = lambda: None
        """Called when the change counter has moved."""
        self._next_poll = self._next_notice = self._wake_at = clock()
        self._walked_at = self._stirred_at = clock()
        self._contention = ContentionBackoff(clock)
        self._last: WakeSnapshot | None = None
        self._unfinished: WakeSnapshot | None = None
        """Set after a full batch: the next one is due without a reading."""
        self._awaited: WakeSnapshot | None = None
        """What this beat sleeps for, unless it lags."""
        self._noticed: datetime | None = None
        """What the last pulse said is next in the namespace."""
        self._is_rest = False
        """Whether this walk follows a full batch, so that there may be nothing left."""
        self._in_vain = 0
        self._is_stirred = False

    @property
    def has_runs(self) -> bool:
        """Whether at the last reading a run went on, or a lock stood for one."""
        return self._last is None or self._last.deadlines.has_runs()

    @property
    def seconds_left(self) -> float:
        """The seconds until the next deadline, poll or notice."""
        return min(self._wake_at, self._next_notice, self._next_poll) - self._clock()

    def stir(self) -> None:
        """Read the deadlines with the next tick: another thread of this beat has changed them."""
        self._is_stirred = True

    def have_come(self) -> bool:
        """Return whether there is something to do: a deadline, a poll or somebody's change."""
        now = self._clock()
        if now >= self._next_poll:
            self._next_poll = now + self._poll
        elif now < self._wake_at and not self._is_stirred and not self._was_changed(now):
            return False
        self._walked_at = now
        return True

    def anticipated(self) -> WakeSnapshot | None:
        """Return what can be claimed without a reading: the rest of a batch, or the awaited slot.

        If another beat was faster, the claim finds that out as well.
        """
        unfinished, self._unfinished = self._unfinished, None
        snapshot = unfinished or self._awaited
        self._is_rest = False
        if snapshot is None or self._walked_at >= snapshot.sent_at + _LONGEST_SPACING:
            return None
        if unfinished is None:
            if not snapshot.has_come(snapshot.starts_at) or snapshot.has_come(snapshot.ends_at):
                return None
            self._awaited = None
        self._is_rest = unfinished is not None
        return snapshot

    def read(self) -> WakeSnapshot:
        """Read the deadlines from the store."""
        sent_at, last = self._clock(), self._last
        self._is_stirred = False
        deadlines = self._store.next_deadlines(self._calls.claimable)
        self._last = snapshot = WakeSnapshot(deadlines, sent_at, self._clock)
        if last is None or deadlines.stirs(last.deadlines):
            self._stirred_at = sent_at
        if last is not None and deadlines.changes != last.deadlines.changes:
            self.on_change()
        self._reclaim_guard.saw(deadlines.now, sent_at)
        self._set_notice(sent_at)
        self._compare(snapshot)
        return snapshot

    def _compare(self, snapshot: WakeSnapshot) -> None:
        """Lag if another beat has claimed what this one woke for; a change is no reason to lag."""
        awaited, self._awaited = self._awaited, None
        if awaited is None or awaited.deadlines.changes != snapshot.deadlines.changes:
            return
        if not snapshot.has_come(snapshot.starts_at) and snapshot.has_come(awaited.starts_at):
            self._contention.lost()

    def is_due(self, snapshot: WakeSnapshot) -> bool:
        """Return whether a slot is due, and has been for the lag of this beat."""
        return snapshot.has_come(snapshot.starts_at, self._contention.lag())

    def note_claim(self, is_won: bool) -> None:
        """Note whether a claim found anything."""
        if is_won:
            self._in_vain = 0
            self._contention.won()
        elif not self._is_rest:
            self._in_vain += 1
            self._contention.lost()

    def go_on(self, snapshot: WakeSnapshot) -> None:
        """Wake at once for the next batch: this one was full."""
        self._wake_at, self._unfinished = self._walked_at, snapshot

    def sleep(self, snapshot: WakeSnapshot, reclaim_at: float) -> bool:
        """Set the wake-up to the earliest deadline or poll; return whether a slot is near.

        `reclaim_at`: the instant before which nothing is reclaimed.
        """
        now = self._clock()
        waits = [self._next_poll - now]
        is_near = False
        if snapshot.starts_at is not None:
            if not self.is_due(snapshot):
                self._in_vain = 0
            seconds = snapshot.seconds_until(snapshot.starts_at)
            lag = self._contention.lag(seconds)
            spread = _SPREAD_SECONDS * self._random()
            waits.append(max(seconds + lag + spread, self._spacing(now, self._in_vain)))
            self._awaited = None if lag else snapshot
            is_near = not lag and seconds < _NEAR_SECONDS
            if self._in_vain:
                waits += self._later(snapshot, now)
        if snapshot.ends_at is not None:
            waits.append(max(snapshot.seconds_until(snapshot.ends_at), reclaim_at - now, self._spacing(now)))
        if snapshot.deadlines.planned_at is not None:
            seconds = snapshot.seconds_until(snapshot.deadlines.planned_at)
            waits.append(max(seconds + self._contention.lag(seconds), self._spacing(now)))
        self._wake_at = now + min(waits)
        return is_near

    def _later(self, snapshot: WakeSnapshot, now: float) -> list[float]:
        """Return the seconds until the first slot after the due rows that others hold."""
        later_at = self._store.next_deadlines(self._calls.claimable, after=snapshot.deadlines.now).starts_at()
        return [] if later_at is None else [max(snapshot.seconds_until(later_at), self._spacing(now))]

    def _spacing(self, now: float, in_vain: int = 0) -> float:
        """Return the seconds until the next walk may begin."""
        return self._walked_at + min(_LONGEST_SPACING, _SPACING_SECONDS * 2.0 ** min(in_vain, 10)) - now

    def _was_changed(self, now: float) -> bool:
        if now < self._next_notice:
            return False
        self._set_notice(now)
        if self._last is None:
            return True
        pulse, noticed = self._store.pulse(), self._noticed
        self._noticed = pulse.wakes_at
        if pulse.changes != self._last.deadlines.changes:
            return True
        # Who submits a one-off counts no change. What only another app's beats may claim is looked
        # at once.
        if pulse.wakes_at in (None, noticed):
            return False
        return now + (pulse.wakes_at - pulse.now).total_seconds() < self._wake_at

    def _set_notice(self, now: float) -> None:
        seconds = self._notice
        if self._last is not None and self._last.ends_at is not None:
            quiet = now - self._stirred_at
            seconds = min(seconds, _LATEST_NOTICE, max(_SOONEST_NOTICE, quiet * _NOTICE_SHARE))
        self._next_notice = now + seconds

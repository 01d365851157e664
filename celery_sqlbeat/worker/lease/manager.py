"""Keep the leases of one worker process: start runs, extend, stop tasks in time, write outcomes.

There is no thread, socket, sleep or Celery here: the owner calls the steps and gives the clock
(docs/design/0008-worker.md).
"""

from collections.abc import Callable, Collection

from celery_sqlbeat import environment, events
from celery_sqlbeat.config.settings import stop_timeout
from celery_sqlbeat.model.lifecycle import (
    SUCCESS,
    Backoff,
    Ending,
    after_cancellation,
    after_failure,
    after_lost_lease,
    released,
)
from celery_sqlbeat.model.one_offs import Asked
from celery_sqlbeat.store import Store
from celery_sqlbeat.worker.lease import Guard, LeaseTable, Phase, RunLease, Stop
from celery_sqlbeat.worker.lease.batching import Timing
from celery_sqlbeat.worker.lease.heartbeats import Heartbeats, Postponing, WaitingRuns, call
from celery_sqlbeat.worker.lease.outcomes import OutcomeWriter, Then
from celery_sqlbeat.worker.lease.places import FULL_SECONDS
from celery_sqlbeat.worker.lease.starts import StartBatcher, StartQuestion
from celery_sqlbeat.worker.membership import WorkerMembership

NOT_BEGUN = "not begun"  # the reason of a run that was given back before its body ran
SERVE, BEAT, WATCH = "serve", "beat", "watch"  # the three steps, each of which may have a thread of its own


class LeaseManager:
    """The leases of one worker process.

    `serve`, `beat` and `watch` belong to one thread each, or all to `turn`. Every other method may
    be called from any thread; it neither blocks nor raises. Its effect comes with the next step,
    whose thread also calls the callbacks: they must not block.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        timing: Timing,
        clock: Callable[[], float] = environment.monotonic,
        wake: Callable[[str], None] = lambda step: None,
        heartbeat_store: Store | None = None,
        membership: WorkerMembership | None = None,
        guard: Guard | None = None,
        failed: Callable[[RunLease, str], Ending] | None = None,
        received: WaitingRuns | None = None,
        rnd: Callable[[], float] = environment.chance,
    ) -> None:
        """`wake` is told which step has something to do sooner than it said.

        `heartbeat_store`: the same store through a connection of its own, so that no slow start
        delays a heartbeat. `guard`: a native lock, where `threading` is patched. `failed` returns
        how a run ends whose body is overdue. `received`: the messages that wait here for their
        start.
        """
        self._leases = LeaseTable(timing, clock, guard, rnd)
        self._outcomes = OutcomeWriter(store, self._leases)
        self._starts = StartBatcher(store, worker, self._leases, self._begun, self._not_begun)
        self._heartbeats = Heartbeats(heartbeat_store or store, self._leases, self._cancel)
        self._postponing = Postponing(heartbeat_store or store, received) if received is not None else None
        self._membership = membership
        self._failed = failed or _failed
        self._wake_up = wake
        self._serves_at = self._beats_at = self._watches_at = float("inf")

    def ask(self, question: StartQuestion) -> None:
        """Ask whether a message may begin; a later step calls `question.answered`.

        After `Started`, `run_lease.take()` must be called when the body begins. Where the message
        asked ahead, a lease that is not taken within `Timing.ahead_seconds` is given back, and
        `take` returns False. `request.start_id` must be new for each delivery of a message.
        """
        self._starts.ask(question)
        self._serve_soon(urgent=not question.ahead)

    def flush_soon(self) -> None:
        """Ask soon for what has gathered: a message that asked ahead lacks only its answer."""
        if self._starts.flush_soon():
            self._wake_up(SERVE)

    def withdraw(self, question: StartQuestion) -> None:
        """Answer a question no more, since its message goes back.

        A start that commits is un-started. An answer may be on its way at this moment; the caller
        must then call `unstart` with its lease.
        """
        question.answered = None
        self._wake_up(SERVE)

    def unstart(self, run_lease: RunLease, then: Then | None = None, reason: str = NOT_BEGUN) -> None:
        """Give back a run whose body never ran.

        The same attempt is due again at once, under a new claim.
        """
        self._end(run_lease, _not_begun(run_lease, reason), 0.0, then)

    def finish(self, run_lease: RunLease, ending: Ending, then: Then | None = None) -> None:
        """Write how a task ended.

        `then` is called with True once it is written, with False if the lease was lost and nothing
        is. The outcome is kept and tried again until one of both is known. A run that was abandoned
        is released for another attempt, whatever its task reports: it was told to stop and may have
        left its work undone.
        """
        self._end(run_lease, ending, 0.0, then)

    def retrying(self, run_lease: RunLease, seconds: float, then: Then | None = None) -> None:
        """Keep the attempt, with a longer lease, for Celery's own retry in so many seconds."""
        self._end(run_lease, None, max(0.0, seconds), then)

    def say_alive_soon(self) -> None:
        """Register this worker again now, since something about it has changed."""
        if self._membership is not None:
            self._membership.flush_soon()
            self._wake_up(BEAT)

    def check_soon(self) -> None:
        """Postpone start deadlines now: a message has come whose deadline is the first."""
        self._wake_up(BEAT)

    def recall(self, run_ids: Collection[str]) -> int:
        """Extend the leases of these runs at once; return how many of them are held here."""
        held = [run_lease for run_lease in self._leases.all() if run_lease.run.run_id in run_ids]
        for run_lease in held:
            run_lease.is_recalled = True
        if held:
            self._wake_up(BEAT)
        return len(held)

    def close(self) -> None:
        """Begin nothing more: refuse the messages that wait, and give back what has not begun.

        The owner takes further steps until `is_idle`: outcomes are still written, and leases
        extended.
        """
        self._starts.close()
        self._outcomes.close()
        for run_lease in self._leases.all():
            if run_lease.phase is Phase.LEASED:
                self._not_begun(run_lease)
        self._wake_up(SERVE)

    @property
    def is_idle(self) -> bool:
        """Whether every question is answered, and every outcome written or known to be lost."""
        return self._starts.is_idle and self._outcomes.is_idle

    @property
    def is_unavailable(self) -> bool:
        """Whether the database was away when it was last asked for a start."""
        return self._starts.batcher.is_unavailable

    @property
    def held(self) -> int:
        """How many runs this process holds."""
        return len(self._leases)

    def turn(self) -> float:
        """Take all three steps, for an owner with one thread; return the seconds until the next."""
        self.watch()  # first: after a standstill no lease may be extended whose task should have been stopped
        return min(self.beat(), self.serve(), self.watch())

    def serve(self) -> float:
        """Write outcomes and ask for starts; return the seconds until the next step."""
        self._serves_at = float("inf")  # what is added from here on wakes the next step
        wait = min(self._outcomes.step(), self._starts.step())
        self._serves_at = self._leases.clock() + wait
        return wait

    def beat(self) -> float:
        """Extend leases and register this worker; return the seconds until the next step."""
        wait = self._heartbeats.step()
        if self._postponing is not None:
            wait = min(wait, self._postponing.step())
        if self._membership is not None:
            wait = min(wait, self._membership.step())
        self._beats_at = self._leases.clock() + wait
        return wait

    def watch(self) -> float:
        """Stop what must not go on, and give back what did not begin in time.

        This step asks no database, so that it is never late.
        """
        now = self._leases.clock()
        late, stops, stuck = [], [], []
        for run_lease in self._leases.all():
            with self._leases.guard:
                if run_lease.phase is Phase.LEASED and now >= min(run_lease.take_by, run_lease.stop_at):
                    late.append(run_lease)
                elif run_lease.phase is Phase.BEGUN and now >= run_lease.stop_at:
                    stops.append((run_lease, run_lease.must_stop(Stop.ABANDONED)))
                elif run_lease.phase is Phase.BEGUN and now >= run_lease.overdue_at:
                    run_lease.release_at = now + stop_timeout(run_lease.run.lease_seconds)
                    stops.append((run_lease, run_lease.must_stop(Stop.OVERDUE)))
                elif run_lease.phase is Phase.STOPPED and now >= run_lease.release_at:
                    stuck.append(run_lease)
        for run_lease in late:
            self._not_begun(run_lease)
        for run_lease, callback in stops:
            _say_stopped(run_lease, now)
            call(callback)
        for run_lease in stuck:
            self._end(run_lease, None, 0.0, None)  # its task could not be stopped, and nothing more is known of it
        self._watches_at = min((run_lease.watch_at for run_lease in self._leases.all()), default=float("inf"))
        return max(0.0, self._watches_at - self._leases.clock())

    def leave(self) -> None:
        """Record that this worker has stopped in order, as its last statement.

        A StoreError there is the caller's.
        """
        if self._membership is not None:
            self._membership.say_stopped()

    def _serve_soon(self, urgent: bool = False) -> None:
        timing = self._leases.timing
        soon = timing.start_spacing if urgent else timing.ahead_spacing
        if self._serves_at > self._leases.clock() + soon:  # else the step comes by itself, since rows gather
            self._wake_up(SERVE)

    def _begun(self, run_lease: RunLease) -> None:
        if run_lease.beat_at < self._beats_at:
            self._wake_up(BEAT)
        if run_lease.watch_at < self._watches_at:
            self._wake_up(WATCH)

    def _not_begun(self, run_lease: RunLease, reason: str = NOT_BEGUN) -> None:
        ending = _not_begun(run_lease, reason)
        if reason != NOT_BEGUN:  # its pool has no place for it
            ending = ending._replace(retry_seconds=FULL_SECONDS * (1.0 + self._leases.random()))
        self._end(run_lease, ending, 0.0, None)

    def _cancel(self, run_lease: RunLease, asked: Asked) -> None:
        """Stop a task, or keep it from beginning, since somebody has cancelled its run."""
        with self._leases.guard:
            was, is_new = run_lease.phase, run_lease.asked is None
            run_lease.asked = asked
            callback = run_lease.must_stop(Stop.CANCELLED) if was in (Phase.LEASED, Phase.BEGUN) else None
            if was is Phase.BEGUN:
                run_lease.release_at = self._leases.clock() + stop_timeout(run_lease.run.lease_seconds)
        if was is Phase.LEASED:
            self._not_begun(run_lease)
        elif is_new and was is Phase.BEGUN:
            self._wake_up(WATCH)
            text = after_cancellation(asked).reason or ""
            events.noted(topic=f"the task of run {run_lease.run.run_id} is stopped", text=text)
        call(callback)

    def _end(self, run_lease: RunLease, ending: Ending | None, keep_seconds: float, then: Then | None) -> None:
        with self._leases.guard:
            if run_lease.asked is not None:
                ending = after_cancellation(run_lease.asked)
            elif run_lease.stop is Stop.ABANDONED:
                ending = _abandoned(run_lease)
            elif run_lease.stop is Stop.OVERDUE and (ending is None or ending.state != SUCCESS):
                ending = self._failed(run_lease, _overdue(run_lease))
            run_lease.ends()
            if ending is None:
                run_lease.is_extended = False  # from here on its lease is longer than a heartbeat would make it
        self._outcomes.add(run_lease, ending, keep_seconds, then)
        self._serve_soon()


def _not_begun(run_lease: RunLease, reason: str) -> Ending:
    """Release the same attempt; start another one for Celery's own retry: its body has run."""
    if run_lease.celery_retries:
        return after_lost_lease(run_lease.run.lost_leases, 0, reason, counted=False)
    return released(reason)


def _abandoned(run_lease: RunLease) -> Ending:
    """Start another attempt at once, uncounted: the database was away, the slot is not to blame."""
    return after_lost_lease(run_lease.run.lost_leases, 0, "abandoned", counted=False)


def _overdue(run_lease: RunLease) -> str:
    return f"max_runtime of {run_lease.run.max_runtime:g} s exceeded"


def _failed(run_lease: RunLease, reason: str) -> Ending:
    run = run_lease.run
    return after_failure(run.failures, run.max_retries, Backoff(), lambda: 1.0, reason)._replace(reason=reason)


def _say_stopped(run_lease: RunLease, now: float) -> None:
    run = run_lease.run
    if run_lease.stop is Stop.OVERDUE:
        events.run_overdue(job_name=run.job_name, run_id=run.run_id, max_runtime=run.max_runtime or 0.0)
        return
    reason = f"abandoned: it was not extended for {now - run_lease.sent_at:.1f} s"
    events.lease_lost(job_name=run.job_name, run_id=run.run_id, reason=reason)

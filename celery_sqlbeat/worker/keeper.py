"""Keeps the leases of one worker process: begins runs, extends them, stops tasks in time, writes outcomes.

Without thread, socket, Celery or sleep: its owner calls its steps and gives the clock. docs/design/worker.md says why.
"""

import logging
import random
import time
from collections.abc import Callable, Collection

from celery_sqlbeat.config import stop_timeout
from celery_sqlbeat.lifecycle import SUCCESS, Backoff, Ending, after_failure, after_lost_lease, given_back
from celery_sqlbeat.model import StartRequest
from celery_sqlbeat.store.protocol import WorkerStore
from celery_sqlbeat.store.steps import Steps, run
from celery_sqlbeat.worker.heartbeats import Heartbeats, call
from celery_sqlbeat.worker.holding import Guard, Holding, Phase, Stop
from celery_sqlbeat.worker.holdings import Holdings
from celery_sqlbeat.worker.outcomes import Outcomes, Then
from celery_sqlbeat.worker.postponing import Postponing
from celery_sqlbeat.worker.received import Received
from celery_sqlbeat.worker.standing import Standing
from celery_sqlbeat.worker.starting import Answered, Starts
from celery_sqlbeat.worker.timing import Timing

logger = logging.getLogger(__name__)

SERVE, BEAT, WATCH = "serve", "beat", "watch"  # the three steps, each of which may have a thread of its own
NOT_BEGUN = "not begun"  # the reason of a run that was given back before its body ran


class Keeper:
    """What one worker process holds. `serve` (or `serving`), `beat` and `watch` each by one thread, or all by `turn`.

    All other methods may be called from any thread; they never block and never raise. What they lead to happens in the
    next step, and so do the callbacks: wherever that is taken, and it must not be blocked there.
    """

    def __init__(
        self,
        store: WorkerStore,
        timing: Timing,
        clock: Callable[[], float] = time.monotonic,
        wake: Callable[[str], None] = lambda step: None,
        heartbeat_store: WorkerStore | None = None,
        standing: Standing | None = None,
        guard: Guard | None = None,
        failed: Callable[[Holding, str], Ending] | None = None,
        received: Received | None = None,
        rnd: Callable[[], float] = random.random,
    ) -> None:
        """`wake` is told which step has something to do sooner than it said.

        `heartbeat_store`: the same store through a connection of its own, so that no slow start delays a heartbeat.
        `guard`: a native lock, where `threading` is patched. `failed` says how a run ends whose body is overdue.
        `received`: the messages that wait here for their start.
        """
        self._holdings = Holdings(timing, clock, guard, rnd)
        self._outcomes = Outcomes(store, self._holdings)
        self._starts = Starts(store, self._holdings, self._begun, self._not_begun)
        self._heartbeats = Heartbeats(heartbeat_store or store, self._holdings)
        self._postponing = Postponing(heartbeat_store or store, received) if received is not None else None
        self._standing = standing
        self._failed = failed or _failed
        self._wake = wake
        self._serves_at = self._beats_at = self._watches_at = float("inf")

    def ask(self, request: StartRequest, answered: Answered, ahead: bool = False) -> None:
        """Ask whether a message may begin; `answered` is called once, in a later step, unless withdrawn before.

        After `Begun` the holding must be taken (`holding.take()`) when its body begins. `ahead`: the message has no
        slot of the pool yet; if it is not taken within `Timing.ahead_seconds`, its lease is given back and `take` says
        False.
        `request.start_id` must be new for each delivery of a message (`Ids().one()`).
        """
        self._starts.ask(request, answered, ahead)
        self._serve_soon(urgent=not ahead)

    def hurry(self, keeps_slot: bool) -> None:
        """Let what has gathered go out soon: what was asked ahead could begin now, but for the answer."""
        if self._starts.hurry(keeps_slot):
            self._wake(SERVE)

    def withdraw(self, request: StartRequest) -> None:
        """Want no answer: the message goes back to the broker. If its start is committed, it is un-started.

        An answer may be on its way at this moment; whoever withdraws must then call `unstart` with its holding.
        """
        self._starts.withdraw(request)
        self._wake(SERVE)

    def unstart(self, holding: Holding, then: Then | None = None, reason: str = NOT_BEGUN) -> None:
        """Give back a run whose body never ran: the same attempt is due again at once, under a new claim."""
        self._end(holding, _not_begun(holding, reason), 0.0, then)

    def finish(self, holding: Holding, ending: Ending, then: Then | None = None) -> None:
        """Write how a task ended: then(True) once it is written, then(False) if the lease was lost and nothing is.

        It is kept and tried again until one of both is known. What was abandoned is released for another attempt,
        whatever the task says: it was told that its lease is lost and may have left its work undone.
        """
        self._end(holding, ending, 0.0, then)

    def retrying(self, holding: Holding, seconds: float, then: Then | None = None) -> None:
        """Celery's own retry is due in so many seconds: keep the attempt, with a lease that lasts until after that."""
        self._end(holding, None, max(0.0, seconds), then)

    def say_alive_soon(self) -> None:
        """Let the others know now what has changed with this worker."""
        if self._standing is not None:
            self._standing.hurry()
            self._wake(BEAT)

    def look_soon(self) -> None:
        """A message waits here whose deadline is to be moved on sooner than that of the others."""
        self._wake(BEAT)

    def recall(self, run_ids: Collection[str]) -> int:
        """Extend the leases of these runs at once, which tells whether they are held; returns how many are here."""
        held = [one for one in self._holdings.all() if one.run.run_id in run_ids]
        for one in held:
            one.is_recalled = True
        if held:
            self._wake(BEAT)
        return len(held)

    def close(self) -> None:
        """Begin nothing more: waiting messages are answered `Away`, what has not begun is given back.

        Go on with the steps until `is_idle`: outcomes are still written, and leases extended.
        """
        self._starts.close()
        self._outcomes.close()
        for holding in self._holdings.all():
            if holding.phase is Phase.LEASED:
                self._not_begun(holding)
        self._wake(SERVE)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for an answer and every outcome is written, or known to be lost."""
        return self._starts.is_idle and self._outcomes.is_idle

    @property
    def is_away(self) -> bool:
        """Whether the database was away when it was last asked for a start."""
        return self._starts.is_away

    @property
    def held(self) -> int:
        """How many runs this process holds."""
        return len(self._holdings)

    def turn(self) -> float:
        """One round of all three, for an owner with one thread; returns the seconds until the next (0: at once)."""
        self.watch()  # first: after a standstill nothing may be extended that should have been stopped
        return min(self.beat(), self.serve(), self.watch())

    def serve(self) -> float:
        """Write one batch of outcomes and ask for one batch of starts; returns the seconds until the next round."""
        return run(self.serving())

    def serving(self) -> Steps[float]:
        """The same in steps. One round ends before the next one begins."""
        self._serves_at = float("inf")  # whoever adds something from here on wakes the next round
        wait = min((yield from self._outcomes.steps()), (yield from self._starts.steps()))
        self._serves_at = self._holdings.clock() + wait
        return wait

    def beat(self) -> float:
        """Extend leases and say that this worker is alive; returns the seconds until the next round."""
        wait = self._heartbeats.step()
        if self._postponing is not None:
            wait = min(wait, self._postponing.step())
        if self._standing is not None:
            wait = min(wait, self._standing.step())
        self._beats_at = self._holdings.clock() + wait
        return wait

    def watch(self) -> float:
        """Stop what must not go on, and give back what did not begin in time. Asks no database, so it is never late."""
        now = self._holdings.clock()
        late, stops, stuck = [], [], []
        for one in self._holdings.all():
            with self._holdings.guard:
                if one.phase is Phase.LEASED and now >= min(one.take_by, one.stop_at):
                    late.append(one)
                elif one.phase is Phase.BEGUN and now >= one.stop_at:
                    stops.append((one, one.must_stop(Stop.ABANDONED)))
                elif one.phase is Phase.BEGUN and now >= one.overdue_at:
                    one.release_at = now + stop_timeout(one.run.lease_seconds)
                    stops.append((one, one.must_stop(Stop.OVERDUE)))
                elif one.phase is Phase.STOPPED and now >= one.release_at:
                    stuck.append(one)
        for one in late:
            self._not_begun(one)
        for one, callback in stops:
            _say_stopped(one, now)
            call(callback)
        for one in stuck:
            self._end(one, None, 0.0, None)  # whoever cannot stop its task says no more than that
        self._watches_at = min((one.watch_at for one in self._holdings.all()), default=float("inf"))
        return max(0.0, self._watches_at - self._holdings.clock())

    def leave(self) -> None:
        """The last thing: say that this worker has stopped in order. May raise a StoreError."""
        if self._standing is not None:
            self._standing.say_stopped()

    def _serve_soon(self, urgent: bool = False) -> None:
        timing = self._holdings.timing
        soon = timing.gather_slots if urgent else timing.gather_starts
        if self._serves_at > self._holdings.clock() + soon:  # else it comes by itself, since it gathers
            self._wake(SERVE)

    def _begun(self, holding: Holding) -> None:
        if holding.beat_at < self._beats_at:
            self._wake(BEAT)
        if holding.watch_at < self._watches_at:
            self._wake(WATCH)

    def _not_begun(self, holding: Holding) -> None:
        self._end(holding, _not_begun(holding, NOT_BEGUN), 0.0, None)

    def _end(self, holding: Holding, ending: Ending | None, keep_seconds: float, then: Then | None) -> None:
        with self._holdings.guard:
            if holding.stop is Stop.ABANDONED:
                ending = _abandoned(holding)
            elif holding.stop is Stop.OVERDUE and (ending is None or ending.state != SUCCESS):
                ending = self._failed(holding, _overdue(holding))
            holding.ends()
            if ending is None:
                holding.is_extended = False  # from here on its lease is longer than a heartbeat would make it
        self._outcomes.add(holding, ending, keep_seconds, then)
        self._serve_soon()


def _not_begun(holding: Holding, reason: str) -> Ending:
    """The same attempt, due at once. Another one where only Celery's own retry did not begin: its body ran before."""
    if holding.celery_retries:
        return after_lost_lease(holding.run.lost_leases, 0, reason, counted=False)
    return given_back(reason)


def _abandoned(holding: Holding) -> Ending:
    """Another attempt, due at once. Not counted: the database was away, the slot is not to blame."""
    return after_lost_lease(holding.run.lost_leases, 0, "abandoned", counted=False)


def _overdue(holding: Holding) -> str:
    return f"max_runtime of {holding.run.max_runtime:g} s exceeded"


def _failed(holding: Holding, reason: str) -> Ending:
    run = holding.run
    return after_failure(run.failures, run.max_retries, Backoff(), lambda: 1.0, reason)._replace(reason=reason)


def _say_stopped(holding: Holding, now: float) -> None:
    run = holding.run
    if holding.stop is Stop.OVERDUE:
        logger.error(
            "run %s of job %r is overdue, %s: its task is stopped", run.run_id, run.job_name, _overdue(holding)
        )
        return
    logger.error(
        "run %s of job %r is abandoned, its lease was not extended for %.1f s: its task is stopped",
        run.run_id,
        run.job_name,
        now - holding.sent_at,
    )

"""All runs that this process holds. Two may be of one run: Celery's own retry can begin before its first try ends."""

import random
import threading
from collections.abc import Callable

from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.worker.holding import Guard, Holding, Phase
from celery_sqlbeat.worker.timing import Timing


class Holdings:
    """The holdings of one process, by the start that each began with."""

    def __init__(
        self,
        timing: Timing,
        clock: Callable[[], float],
        guard: Guard | None = None,
        rnd: Callable[[], float] = random.random,
    ) -> None:
        self.timing = timing
        self.clock = clock
        self.random = rnd
        self.guard: Guard = guard or threading.Lock()
        self._by_start: dict[str, Holding] = {}
        self._latest: dict[str, Holding] = {}

    def add(self, run: StartedRun, celery_retries: int, sent_at: float, ahead: bool) -> Holding:
        """Hold a run that the database has just begun, by a statement sent at that instant."""
        take_by = self.clock() + self.timing.ahead_seconds if ahead else float("inf")
        interval, stop_after = self.timing.interval(run.lease_seconds), self.timing.stop_after(run.lease_seconds)
        holding = Holding(run, celery_retries, sent_at, interval, stop_after, take_by, self.clock, self.guard)
        with self.guard:
            self._by_start[run.start_id] = holding
            self._latest[run.run_id] = holding
        return holding

    def remove(self, holding: Holding) -> None:
        """Forget a holding; its phase says why."""
        with self.guard:
            holding.phase, holding.is_extended = Phase.OVER, False
            self._by_start.pop(holding.run.start_id, None)
            if self._latest.get(holding.run.run_id) is holding:
                del self._latest[holding.run.run_id]

    def is_latest(self, holding: Holding) -> bool:
        """Whether no later try of the same run has begun here: only then may the run be ended for this one."""
        return self._latest.get(holding.run.run_id) is holding

    def of_run(self, run_id: str) -> Holding | None:
        """The latest holding of a run."""
        return self._latest.get(run_id)

    def all(self) -> list[Holding]:
        """Every holding, as of now."""
        with self.guard:
            return list(self._by_start.values())

    def __len__(self) -> int:
        return len(self._by_start)

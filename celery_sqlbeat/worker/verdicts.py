"""What follows how a run of this worker ends, by its settings; whoever asks twice is told the same."""

import random
from functools import partial

from celery_sqlbeat.config import Settings
from celery_sqlbeat.lifecycle import Ending, after_failure, tried_again_in
from celery_sqlbeat.worker.endings import End, backoff_of, ending
from celery_sqlbeat.worker.holding import Holding


class Verdicts:
    """The endings of one process. Safe to ask from any thread."""

    def __init__(self, settings: Settings) -> None:
        self._backoff = backoff_of(settings)

    def ending(self, holding: Holding, end: End, error: str | None, traceback: str | None) -> Ending:
        """How the run ends whose task ended so."""
        return ending(end, holding.run, self._backoff, partial(_luck, holding), error, traceback)

    def tried_again_in(self, holding: Holding) -> float | None:
        """The seconds until another attempt, should this one fail; None where it is the last one."""
        run = holding.run
        return tried_again_in(run.failures, run.max_retries, self._backoff, partial(_luck, holding))

    def overdue(self, holding: Holding, reason: str) -> Ending:
        """How a run ends whose body took too long."""
        run, luck = holding.run, partial(_luck, holding)
        return after_failure(run.failures, run.max_retries, self._backoff, luck, reason)._replace(reason=reason)


def _luck(holding: Holding) -> float:
    if holding.luck is None:
        holding.luck = random.random()  # noqa: S311 - a backoff is no secret
    return holding.luck

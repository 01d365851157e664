"""Says of runs that go on for several intervals of their job: once when it is seen, and rarely after that."""

import logging
import time
from collections.abc import Callable

from celery_sqlbeat.definition import Rules
from celery_sqlbeat.long_runs import LEAST_SECONDS, MOST_RUNS, long_runs
from celery_sqlbeat.store.protocol import AdminStore

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 3600.0  # a run that hangs does so for long, and a job whose runs are always late is no news


class LongRuns:
    """What one beat has told of them."""

    def __init__(self, admin: AdminStore, rules: Rules, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._rules = rules
        self._clock = clock
        self._silent_until: dict[str, float] = {}

    def tell(self) -> None:
        """Log what is new."""
        now = self._clock()
        self._silent_until = {name: until for name, until in self._silent_until.items() if until > now}
        for run in long_runs(self._admin.running(LEAST_SECONDS, MOST_RUNS), self._rules):
            if run.job_name not in self._silent_until:
                self._silent_until[run.job_name] = now + _AGAIN_SECONDS
                logger.warning("%s: %s", run, run.remedy)

"""What a beat looks after between fires: rows to fill in or set aside, deletions, locks without a run, old history."""

import logging
import time
from collections.abc import Callable

from celery_sqlbeat.model import Quarantine
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.protocol import FIRST_ID, AdminStore, BeatStore

logger = logging.getLogger(__name__)

_BATCH = 500  # rows; one page at a time, so that nothing is locked for long
_MOST_PAGES = 20  # of loose rows and pass; the rest waits for the next pass
_DAY = 86400.0
_PURGE_SECONDS = 3600.0  # history is kept for days; an idle beat asks the database little
_LONGEST_PURGE = 0.5  # seconds of one pass: some ten thousand rows, and what is due meanwhile is hardly late


class Tending:
    """One pass over everything, at most once per poll interval."""

    def __init__(
        self,
        store: BeatStore,
        admin: AdminStore,
        planner: Planner,
        lock_seconds: float,
        history_days: float,
        owner: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._admin = admin
        self._planner = planner
        self._lock_seconds = lock_seconds
        self._keep_seconds = history_days * _DAY
        self._owner = owner
        self._clock = clock
        self._next_purge = clock()

    def tend(self) -> int:
        """Bring rows in order; returns how many became ready to run or were set aside."""
        done = self._mend()
        if self._clock() >= self._next_purge and self._purge():
            self._next_purge = self._clock() + _PURGE_SECONDS
        return done

    def free_strays(self) -> None:
        """Free locks that stand for no run."""
        for name in self._store.free_strays(self._lock_seconds):
            logger.warning("job %s was locked without a run; it is free again", name)

    def _mend(self) -> int:
        done, after = 0, FIRST_ID
        for _ in range(_MOST_PAGES):
            rows = self._store.loose_rows(_BATCH, after, self._owner)
            if not rows:
                break
            after = rows[-1].job_id
            names = {row.job_id: row.job_name for row in rows}
            if doomed := [row.job_id for row in rows if row.delete_requested]:
                for job_id, reason in self._store.delete_requested(doomed).refused.items():
                    logger.error("job %s cannot be deleted: %s", names[job_id], reason)
            mends, quarantines = self._planner.mend([row for row in rows if not row.delete_requested])
            written = self._store.mend(mends, quarantines)
            refused = [
                Quarantine(row.job_id, row.job_name, row.fence, written.refused[row.job_id])
                for row in rows
                if row.job_id in written.refused and row.quarantine != written.refused[row.job_id]
            ]
            for quarantine in (*quarantines, *refused):
                logger.error("job %s is set aside: %s", quarantine.job_name, quarantine.reason)
            done += len(written.done) + len(self._store.mend([], refused).done)
            if len(rows) < _BATCH:
                break
        return done

    def _purge(self) -> bool:
        """Whether nothing is left to delete; otherwise the next pass goes on."""
        end = self._clock() + _LONGEST_PURGE
        while self._admin.purge_history(self._keep_seconds, _BATCH) == _BATCH:
            if self._clock() >= end:
                return False
        self._admin.purge_nodes(self._keep_seconds)
        return True

"""What a beat looks after between fires: rows to fill in or set aside, deletions, locks without a run."""

import logging
from collections.abc import Sequence

from celery_sqlbeat.errors import DatabaseBusy
from celery_sqlbeat.model import LooseRow, Quarantine
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.protocol import FIRST_ID, BeatStore

logger = logging.getLogger(__name__)

_BATCH = 500  # rows; one page at a time, so that nothing is locked for long
_MOST_PAGES = 20  # of loose rows and pass; the rest waits for the next pass


class Tending:
    """One pass over everything, at most once per poll interval."""

    def __init__(self, store: BeatStore, planner: Planner, lock_seconds: float, owner: str = "") -> None:
        self._store = store
        self._planner = planner
        self._lock_seconds = lock_seconds
        self._owner = owner

    def tend(self) -> int:
        """Bring rows in order; returns how many became ready to run or were set aside."""
        done, after = 0, FIRST_ID
        for _ in range(_MOST_PAGES):
            rows = self._store.loose_rows(_BATCH, after, self._owner)
            if not rows:
                break
            after = rows[-1].job_id
            self._delete([row for row in rows if row.delete_requested])
            done += self._mend([row for row in rows if not row.delete_requested])
            if len(rows) < _BATCH:
                break
        return done

    def free_strays(self) -> None:
        """Free locks that stand for no run."""
        for name in self._store.free_strays(self._lock_seconds):
            logger.warning("job %s was locked without a run; it is free again", name)

    def _delete(self, rows: Sequence[LooseRow]) -> None:
        """Delete jobs. What keeps a batch waiting is halved down to the row, which is left for the next pass."""
        if not rows:
            return
        try:
            written = self._store.delete_requested([row.job_id for row in rows])
        except DatabaseBusy as error:
            if len(rows) == 1:
                logger.warning("job %s is deleted later: %s", rows[0].job_name, error)
                return
            middle = len(rows) // 2
            self._delete(rows[:middle])
            self._delete(rows[middle:])
            return
        for row in rows:
            if row.job_id in written.refused:
                logger.error("job %s cannot be deleted: %s", row.job_name, written.refused[row.job_id])

    def _mend(self, rows: Sequence[LooseRow]) -> int:
        mends, quarantines = self._planner.mend(rows)
        written = self._store.mend(mends, quarantines)
        refused = [
            Quarantine(row.job_id, row.job_name, row.fence, written.refused[row.job_id])
            for row in rows
            if row.job_id in written.refused and row.quarantine != written.refused[row.job_id]
        ]
        for quarantine in (*quarantines, *refused):
            logger.error("job %s is set aside: %s", quarantine.job_name, quarantine.reason)
        return len(written.done) + len(self._store.mend([], refused).done)

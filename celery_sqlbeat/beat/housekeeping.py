"""What beats do between fires, each in its own duty.

They repair rows, delete jobs, release orphan locks, purge history and report long runs.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from celery_sqlbeat import environment, events
from celery_sqlbeat.errors import DatabaseBusy
from celery_sqlbeat.model import DeleteIdleJob, JobRecord, QuarantineJob
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.run_times import LEAST_SECONDS, MOST_LONG_RUNS, long_runs
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.purges import OldKeys, OldNodes, OldRuns, Purged
from celery_sqlbeat.store.records import FIRST_ID, JobQuery

_BATCH = 500  # rows; one page at a time, so that nothing is locked for long
_MOST_PAGES = 20  # a pass; the rest waits for the next pass
_DAY = 86400.0
_AGAIN_SECONDS = 3600.0  # a run that hangs does so for long
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 3600.0  # seconds between two passes of the clean-up
# The pauses where nothing is old: an idle beat asks after 1, 7, 15, 31 and 63 minutes, when no
# other of its rare duties is due (beat/build.py).
_IDLE_PAUSES = (60.0, 360.0, 480.0, 960.0, 1920.0, _LONGEST_PAUSE)
_BATCHES_A_PASS = 5  # that have grown old since the pass before, where rows grow old all the time
_MOST_A_SECOND = 15_000.0  # rows deleted, whatever is left: others use the database, too
_FROM_THE_START = 600.0  # seconds: a run may end long after its slot, and lie before the place reached
_NODES_PAUSE = 3600.0  # seconds between two times that nodes and names are forgotten: they are kept for days


class Housekeeping:
    """Keeps the rows of jobs in order."""

    def __init__(self, store: Store, planner: Planner, lock_seconds: float, owner: str = "") -> None:
        self._store = store
        self._planner = planner
        self._lock_seconds = lock_seconds
        self._owner = owner

    def repair_rows(self) -> int:
        """Fill in and repair rows; return how many became ready to run or were quarantined."""
        done, after = 0, FIRST_ID
        for _ in range(_MOST_PAGES):
            page = JobQuery(needing_repair_of=self._owner, after_id=after, page_size=_BATCH)
            rows = list(self._store.jobs(page).values())
            if not rows:
                break
            after = rows[-1].job_id
            self._delete([row for row in rows if row.delete_requested])
            done += self._repair([row for row in rows if not row.delete_requested])
            if len(rows) < _BATCH:
                break
        return done

    def release_orphan_locks(self) -> None:
        """Release the locks that stand for no run."""
        for name in self._store.release_orphan_locks(self._lock_seconds):
            events.advice(
                topic="lock",
                text=f"job {name} was locked without a run; its lock is released",
                remedy="none is needed; to keep a job from running, pause it: celery -A app sqlbeat jobs pause",
            )

    def _delete(self, rows: Sequence[JobRecord]) -> None:
        """Delete jobs; halve a batch that meets a lock down to the row, left for the next pass."""
        if not rows:
            return
        try:
            result = self._store.write_jobs([DeleteIdleJob(row.job_name, row.job_id) for row in rows])
        except DatabaseBusy as error:
            if len(rows) == 1:
                events.step_failed(step="delete a job", subject=rows[0].job_name, error=error)
                return
            middle = len(rows) // 2
            self._delete(rows[:middle])
            self._delete(rows[middle:])
            return
        for row in rows:
            if row.job_name in result.refused:
                events.row_refused(action="delete a job", row=row.job_name, error=result.refused[row.job_name])

    def _repair(self, rows: Sequence[JobRecord]) -> int:
        repairs, quarantines = self._planner.repairs(rows)
        result = self._store.write_jobs([*repairs, *quarantines])
        refused = [
            QuarantineJob(row.job_name, row.job_id, row.fence, row.version, result.refused[row.job_name])
            for row in rows
            if row.job_name in result.refused and row.quarantine != result.refused[row.job_name]
        ]
        done = result.done | self._store.write_jobs(refused).done
        for quarantine in (*quarantines, *refused):
            if quarantine.job_name in done:
                events.job_quarantined(job_name=quarantine.job_name, reason=quarantine.reason)
        return len(done)


class CleanUp:
    """Deletes old history and ended keys of one namespace; any number of beats may share the work.

    It keeps pace with the highest rate of fires, and rests where nothing is old enough.
    """

    def __init__(self, admin: Store, history_days: float, clock: Callable[[], float] = environment.monotonic) -> None:
        self._admin = admin
        self._keep_seconds = history_days * _DAY
        self._clock = clock
        self._after: datetime | None = None
        """The rows of slots before this are deleted, but for those that ended late."""
        self._start_again_at = self._nodes_at = clock()
        self._pause = _IDLE_PAUSES[0] / 2
        self._is_turn_of_keys = False
        self._deleted = self._limit = 0
        self._last_end: float | None = None

    def clean(self) -> float:
        """Delete one batch; return the seconds until the next."""
        began = self._clock()
        if not self._is_turn_of_keys:
            if began >= self._start_again_at:
                self._after, self._start_again_at = None, began + _FROM_THE_START
            purged = self._admin.purge(OldRuns(self._keep_seconds, self._after))
            refused = len(purged.refused)
            if purged.rows or refused:
                events.history_purged(rows=purged.rows, refused=refused)
            self._after = purged.last or self._after
            if self._has_more(purged):
                return self._rest_after(purged, began)
        if self._is_turn_of_keys or self._deleted:
            keys_at = self._clock()
            keys = self._admin.purge(OldKeys())
            if self._has_more(keys):
                return self._rest_after(keys, keys_at)
        # Where nothing is old the two take turns: an idle beat asks little in each minute.
        self._is_turn_of_keys = not self._is_turn_of_keys and not self._deleted
        if began >= self._nodes_at:
            self._admin.purge(OldNodes(self._keep_seconds))
            self._nodes_at = began + _NODES_PAUSE
        return self._end_of_pass(_BATCHES_A_PASS * self._limit)

    def _has_more(self, purged: Purged) -> bool:
        """Count what a batch has deleted; return whether it was a full one."""
        self._deleted += purged.rows
        self._limit = purged.limit
        return purged.rows + len(purged.refused) >= purged.limit

    def _rest_after(self, purged: Purged, began: float) -> float:
        """Return the seconds until the next batch, where more is left."""
        took = self._clock() - began
        return max(purged.rest * took, purged.rows / _MOST_A_SECOND - took, 0.0)

    def _end_of_pass(self, enough: int) -> float:
        """Return the seconds until about `enough` rows are old, or ever more where none is."""
        now, deleted = self._clock(), self._deleted
        if not deleted and 2 * self._pause <= _IDLE_PAUSES[0]:
            self._pause *= 2
        elif not deleted:
            self._pause = next((pause for pause in _IDLE_PAUSES if pause > self._pause), _LONGEST_PAUSE)
        elif self._last_end is not None:
            self._pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, enough * (now - self._last_end) / deleted))
        self._deleted, self._last_end = 0, now
        return self._pause


class LongRunReport:
    """Warns of runs that outlast several intervals of their job: once, and rarely after that."""

    def __init__(self, admin: Store, rules: Rules, clock: Callable[[], float] = environment.monotonic) -> None:
        self._admin = admin
        self._rules = rules
        self._clock = clock
        self._silent_until: dict[str, float] = {}

    def tell(self) -> None:
        """Warn of the runs that were not reported lately."""
        now = self._clock()
        self._silent_until = {name: until for name, until in self._silent_until.items() if until > now}
        for run in long_runs(self._admin.running(LEAST_SECONDS, MOST_LONG_RUNS), self._rules):
            if run.job_name not in self._silent_until:
                self._silent_until[run.job_name] = now + _AGAIN_SECONDS
                events.long_run_seen(
                    job_name=run.job_name,
                    run_id=run.run_id,
                    worker=run.worker,
                    seconds=run.seconds,
                    intervals=run.intervals,
                    remedy=run.remedy,
                )

"""A place for rows in memory, with a clock that the test sets, and a second way to its rows."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_sqlbeat.model import AddJob, JobDraft
from celery_sqlbeat.model.lifecycle import TRANSITIONS
from celery_sqlbeat.store.keyvalue.entries import entries
from celery_sqlbeat.store.keyvalue.history import History
from celery_sqlbeat.store.keyvalue.job_writes import JobWriter
from celery_sqlbeat.store.keyvalue.jobs import JobQuestions
from celery_sqlbeat.store.keyvalue.memory import MemoryPlace
from celery_sqlbeat.store.keyvalue.nodes import NodeRegister
from celery_sqlbeat.store.keyvalue.releases import ReleaseRegister
from celery_sqlbeat.store.keyvalue.rows import ABSENT, Change, Key, Place, Row, Scan, Snapshot
from celery_sqlbeat.store.keyvalue.runs import Runs
from celery_sqlbeat.store.keyvalue.tables import JOB, NAME, RUN, STORE, micros
from celery_sqlbeat.store.records import JobQuery

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)


def draft(name: str, **fields: Any) -> JobDraft:
    plain = JobDraft(name, "app.task", "every 60s", None, None, None, None, None, True, None, NOON, None)
    return plain._replace(**fields)


class Bench:
    """The parts of a store over one place in memory, and short words for its rows."""

    def __init__(self) -> None:
        self.now = NOON
        self.place: Place = MemoryPlace(entries, [Change({STORE: (ABSENT, {"version": 1})})], lambda: self.now)
        self._open()

    def _open(self) -> None:
        self.runs = Runs(self.place)
        self.writer = JobWriter(self.place, self.runs.finish)
        self.jobs = JobQuestions(self.place)
        self.history = History(self.place)
        self.nodes = NodeRegister(self.place)
        self.releases = ReleaseRegister(self.place)

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def between(self, happens: Callable[[], object]) -> None:
        """Let this happen once, after the next read of rows and before what is written then."""
        self.place = _Interrupted(self.place, happens)
        self._open()

    def row(self, table: str, row_id: str) -> Row | None:
        return self.place.read([(table, row_id)]).rows[table, row_id].row

    def put(self, table: str, row_id: str, **fields: Any) -> Row:
        """Write fields of a row, whoever has it; instants as others know them."""
        key: Key = (table, row_id)
        was = self.place.read([key]).rows[key]
        told = {field: micros(value) if isinstance(value, datetime) else value for field, value in fields.items()}
        row = {field: value for field, value in {**(was.row or {}), **told}.items() if value is not None}
        assert self.place.write([Change({key: (was, row)})]) == [True]
        return row

    def add(self, *names: str, **fields: Any) -> str:
        """Add jobs; return the id of the last."""
        result = self.writer.write_jobs([AddJob(draft(name, **fields)) for name in names])
        assert result.done == set(names)
        return self.job_id(names[-1])

    def job_id(self, name: str) -> str:
        return str((self.row(NAME, name) or {})["job_id"])

    def job(self, name: str) -> Row:
        row = self.row(JOB, self.job_id(name))
        assert row is not None
        return row

    def run(self, job_id: str, run_id: str, **fields: Any) -> None:
        """Write a run of a job: by default one that has succeeded."""
        job = self.row(JOB, job_id) or {}
        plain = {
            "job_id": job_id,
            "job_name": job.get("job_name", "gone"),
            "kind": "schedule",
            "scheduled_for": self.now,
            "attempt": 1,
            "state": "success",
            "fence": 1,
            "claim_id": f"claim of {run_id}",
            "created_at": self.now,
        }
        row = {**plain, **fields}
        came_from = min(before for before, state in {*TRANSITIONS, ("new", "scheduled")} if state == row["state"])
        self.put(RUN, run_id, **{"prior_state": came_from, **row})

    def hold(self, name: str, run_id: str = "run-1", **fields: Any) -> None:
        """Let a run hold a job, begun by a worker."""
        job_id = self.job_id(name)
        held = {"state": "running", "started_at": self.now, "started_by": "worker", "exclusive": 1, "advances": 1}
        self.run(job_id, run_id, **{**held, "started_retry": 0, **fields})
        lease = {"locked_by": "worker", "lease_ends_at": self.now + timedelta(seconds=60), "started_retry": 0}
        self.put(JOB, job_id, run_id=run_id, claim_id=f"claim of {run_id}", fence=1, **lease)

    def letter(self, name: str, run_id: str = "run-1", **fields: Any) -> None:
        """Write a dead letter."""
        self.run(self.job_id(name), run_id, **{"state": "dlq", "finished_at": self.now, **fields})

    def names(self) -> list[str]:
        return list(self.jobs.jobs(JobQuery()))

    def changes(self) -> int:
        return self.place.read().counter


class _Interrupted:
    def __init__(self, place: Place, happens: Callable[[], object]) -> None:
        self._place = place
        self._happens = [happens]

    def read(self, keys: Sequence[Key] = (), scans: Sequence[Scan] = ()) -> Snapshot:
        return self._place.read(keys, scans)

    def write(self, changes: Sequence[Change]) -> list[bool]:
        if self._happens:
            self._happens.pop()()
        return self._place.write(changes)

    def forget(self) -> None:
        self._place.forget()

    def close(self) -> None:
        self._place.close()

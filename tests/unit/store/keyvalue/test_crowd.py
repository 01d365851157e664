"""Whatever comes between a read and a write: names, fences and waiting runs agree."""

import random
from collections.abc import Callable, Sequence

import pytest

from celery_sqlbeat.model import (
    AddJob,
    Beside,
    CodeAddition,
    CodeChanges,
    CodeDefinition,
    CodeImport,
    DeleteIdleJob,
    DeleteJob,
    NewRun,
    PauseJob,
    StartRequest,
)
from celery_sqlbeat.model.lifecycle import SUCCESS, Ending
from celery_sqlbeat.model.one_offs import CancelRequest, IdempotencyKey, OneOff
from celery_sqlbeat.store.keyvalue.one_offs import OneOffs
from celery_sqlbeat.store.keyvalue.rows import Change, Key, Place, Scan, Snapshot
from celery_sqlbeat.store.keyvalue.tables import JOB, NAME, NAMES, OUTBOX, RUN
from celery_sqlbeat.store.purges import OldKeys, OldNodes, OldRuns
from celery_sqlbeat.store.records import JobQuery, Release, RunQuery
from tests.support.memory_place import NOON, Bench, draft

NAMED = ("a", "b", "c")


class Crowd(Bench):
    """Many who write the same few jobs, each in the middle of what another does."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.depth = 0
        self.made = 0
        self.cancelled: set[str] = set()
        self.fences = dict.fromkeys(NAMED, -1)
        self.place = _Crowded(self.place, self.step)
        self._open()

    def number(self) -> int:
        self.made += 1
        return self.made

    def step(self) -> None:
        """Let somebody do something, unless enough is going on."""
        if self.depth < 3 and self.chance.random() < 0.4:
            self.depth += 1
            self.chance.choice(self.deeds())(self.chance.choice(NAMED))
            self.depth -= 1

    def deeds(self) -> list[Callable[[str], object]]:
        return [
            self.add_one,
            self.delete,
            self.pause,
            self.begin,
            self.end,
            self.extra,
            self.replay,
            self.comes,
            self.forget,
            self.submit,
            self.cancel,
            self.end_one_offs,
        ]

    def add_one(self, name: str) -> None:
        self.writer.write_jobs([AddJob(draft(name))])

    def delete(self, name: str) -> None:
        self.writer.write_jobs([DeleteJob(name, force=self.chance.random() < 0.5)])

    def pause(self, name: str) -> None:
        self.writer.write_jobs([PauseJob(name, "x"), PauseJob(self.chance.choice(NAMED), "y")])

    def begin(self, name: str) -> None:
        """Claim the job as a beat would: fence and lease in one write."""
        job = self.jobs.jobs(JobQuery(names=[name])).get(name)
        if job is None or job.locked_by is not None or job.delete_requested:
            return
        key: Key = (JOB, job.job_id)
        was = self.place.read([key]).rows[key]
        if was.row is None or was.row.get("locked_by") is not None or was.row["fence"] != job.fence:
            return
        run_id, fence = f"run-{self.number():05}", job.fence + 1
        lease = {"locked_by": "w", "run_id": run_id, "claim_id": "c", "fence": fence, "started_retry": 0}
        run = {
            "job_id": job.job_id,
            "job_name": name,
            "kind": "schedule",
            "scheduled_for": self.made,
            "attempt": 1,
            "state": "running",
            "prior_state": "claimed",
            "exclusive": 1,
            "advances": 0,
            "fence": fence,
            "claim_id": "c",
            "created_at": 0,
        }
        rows = {
            key: (was, {**was.row, **lease}),
            (RUN, run_id): (self.place.read([(RUN, run_id)]).rows[RUN, run_id], run),
        }
        self.place.write([Change(rows)])

    def end(self, name: str) -> None:
        job = self.jobs.jobs(JobQuery(names=[name])).get(name)
        if job is not None and job.run_id is not None:
            ending = Ending("dlq" if self.chance.random() < 0.5 else SUCCESS)
            self.runs.finish([Release(job.job_id, job.run_id, "c", job.fence, ending)])
            self.writer.write_jobs([DeleteIdleJob(name, job.job_id)])

    def extra(self, name: str) -> None:
        for job in self.jobs.jobs(JobQuery(names=[name])).values():
            self.writer.enqueue([NewRun(f"run-{self.number():05}", job.job_id)])

    def replay(self, name: str) -> None:
        for letter in self.history.runs(RunQuery(only_dead=True))[:2]:
            self.writer.enqueue([NewRun(f"run-{self.number():05}", letter.job_id, letter)])

    def comes(self, name: str) -> None:
        """Import an app's entry of that name."""
        definition = CodeDefinition(name, "app.task", "every 60s", "UTC", None, None, None, None)
        addition = CodeAddition(f"code-{self.number()}", definition, NOON, None)
        self.releases.import_code(CodeImport("shop", "v1", {}, 1.0, Beside(), CodeChanges([addition], [], [])))

    def submit(self, name: str) -> None:
        """Submit what has one key for each name, as claimed or for a beat."""
        wanted = OneOff(f"run-{self.number():05}", "app.once", None, None, None, None)
        wanted = wanted._replace(key=IdempotencyKey(name, "digest", 60.0), claim_id=self.chance.choice([None, "c"]))
        (answer,) = OneOffs(self.place).submit([wanted], "s", 30.0).values()
        assert answer.run_id == wanted.run_id or not answer.is_new

    def cancel(self, name: str) -> None:
        for run in self.history.runs(RunQuery())[:3]:
            answers = OneOffs(self.place).cancel([CancelRequest(run.run_id, "ann", name)])
            self.cancelled |= {run_id for run_id, answer in answers.items() if answer.is_done or answer.is_asked}

    def end_one_offs(self, name: str) -> None:
        """Begin what its submitter has claimed, and end it."""
        for run in self.history.runs(RunQuery(one_offs=True))[:3]:
            self.runs.start([StartRequest(run.run_id, "c", run.fence, name, 0)], "w")
            self.runs.finish([Release(run.job_id, run.run_id, "c", run.fence, Ending(SUCCESS))])

    def forget(self, name: str) -> None:
        self.later(100)
        self.history.purge(OldNodes(50.0))
        self.history.purge(OldRuns(50.0))
        self.history.purge(OldKeys())

    def check(self) -> None:
        read = self.place.read(scans=[Scan(NAMES), Scan(OUTBOX)])
        named = {name: self.row(NAME, name) or {} for name, _ in read.scanned[0].ids}
        for name, row in named.items():
            assert self.job(name)["job_name"] == name, row
        everyone = self.jobs.jobs(JobQuery())
        assert {record.job_id for record in everyone.values()} == {row["job_id"] for row in named.values()}
        assert self.jobs.counts().total == len(named) and self.jobs.counts().active <= len(named)
        for run_id, _ in read.scanned[1].ids:
            assert self.row(JOB, (self.row(RUN, run_id) or {})["job_id"]) is not None, "nobody would take it up"
        for run in self.history.runs(RunQuery(one_offs=True)):
            assert self.row(JOB, run.run_id) is not None, "its leases have no row"
        for run in self.history.runs(RunQuery(run_ids=self.cancelled)):
            assert run.state == "cancelled" or (run.state == "running" and run.cancel_at), run
        for name, record in everyone.items():
            assert record.fence >= self.fences[name], name
            self.fences[name] = record.fence


class _Crowded:
    def __init__(self, place: Place, step: Callable[[], None]) -> None:
        self._place, self._step = place, step

    def read(self, keys: Sequence[Key] = (), scans: Sequence[Scan] = ()) -> Snapshot:
        return self._place.read(keys, scans)

    def write(self, changes: Sequence[Change]) -> list[bool]:
        self._step()
        return self._place.write(changes)

    def forget(self) -> None:
        self._place.forget()

    def close(self) -> None:
        self._place.close()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_comes_between_rows_agree(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(60):
        crowd.chance.choice(crowd.deeds())(crowd.chance.choice(NAMED))
        crowd.check()
    assert crowd.made > 10, "something has happened"

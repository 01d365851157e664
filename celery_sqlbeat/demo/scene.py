"""What can be seen at one moment: the jobs, who holds what, who is alive. Made from rows; knows no process. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from celery_sqlbeat.lifecycle import CLAIMED, RUNNING
from celery_sqlbeat.model import JobRecord, RunRecord, SeenNode


class Hold(NamedTuple):
    """A run and its holder."""

    run_id: str
    job_name: str
    holder: str
    attempt: int
    is_running: bool
    lease_left: float
    running_seconds: float


class JobLine(NamedTuple):
    """One job, as the table shows it."""

    name: str
    schedule: str
    doing: str
    hold: Hold | None
    next_seconds: float | None
    done: int
    dead: int
    is_paused: bool


class NodeLine(NamedTuple):
    """A beat or a worker, as the database knows it."""

    name: str
    heartbeat_seconds: float


class Scene(NamedTuple):
    """One moment."""

    now: datetime
    jobs: list[JobLine]
    nodes: list[NodeLine]
    runs: Sequence[RunRecord]
    names: Mapping[str, str]
    """What the demonstration calls a node, by its id."""

    def holds(self) -> list[Hold]:
        """Whatever is held."""
        return [job.hold for job in self.jobs if job.hold is not None]

    def hold_of(self, job_name: str) -> Hold | None:
        """The run of this job, if one is running."""
        return next((hold for hold in self.holds() if hold.job_name == job_name and hold.is_running), None)

    def called(self, node_id: str | None) -> str:
        """What the demonstration calls a node."""
        return self.names.get(node_id or "", node_id or "nobody")


def scene(
    now: datetime,
    jobs: Sequence[JobRecord],
    runs: Sequence[RunRecord],
    nodes: Sequence[SeenNode],
    names: Mapping[int, str],
) -> Scene:
    """Put together what was read. `names`: what the demonstration calls its processes, by process id."""
    called = {node.node_id: names.get(node.pid, node.node_id) for node in nodes}
    by_id = {run.run_id: run for run in runs}
    lines = [_job_line(now, job, runs, by_id, called) for job in jobs]
    seen = [
        NodeLine(called[node.node_id], max((now - node.heartbeat_at).total_seconds(), 0.0))
        for node in nodes
        if node.pid in names and node.stopped_at is None
    ]
    return Scene(now, lines, sorted(seen), runs, called)


def _job_line(
    now: datetime,
    job: JobRecord,
    runs: Sequence[RunRecord],
    by_id: Mapping[str, RunRecord],
    called: Mapping[str, str],
) -> JobLine:
    own = [run for run in runs if run.job_id == job.job_id]
    hold = None
    run = by_id.get(job.run_id or "")
    if job.locked_by is not None and run is not None:
        started = run.started_at if run.state == RUNNING else None
        hold = Hold(
            run.run_id,
            job.job_name,
            called.get(job.locked_by, job.locked_by),
            run.attempt,
            started is not None,
            (job.lease_ends_at - now).total_seconds() if job.lease_ends_at is not None else 0.0,
            (now - started).total_seconds() if started is not None else 0.0,
        )
    due = job.retry_at or job.next_run_time
    return JobLine(
        job.job_name,
        str(job.schedule or f"every {job.interval_minutes}m"),
        _doing(job, run),
        hold,
        (due - now).total_seconds() if due is not None else None,
        sum(run.state in ("success", "dispatched") for run in own),
        sum(run.state == "dlq" for run in own),
        not job.enabled,
    )


def _doing(job: JobRecord, run: RunRecord | None) -> str:
    if job.locked_by is None or run is None:
        return "waits for retry" if job.retry_at is not None else "waits" if job.enabled else "paused"
    if run.state == CLAIMED:
        return "claimed" if run.published_at is None else "queued"
    return "running" if run.attempt == 1 else f"running, attempt {run.attempt}"

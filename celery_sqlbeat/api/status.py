"""Summarize a namespace: its jobs, beats and workers, the last hour, and whether all is well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from celery_sqlbeat import environment
from celery_sqlbeat.api.records import plain
from celery_sqlbeat.beat.withheld import KEY, TOLD_SECONDS
from celery_sqlbeat.beat_schedule.entries import named_release
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.model import JobCounts, JobRecord, SeenNode
from celery_sqlbeat.model.nodes import mark_in, names_in, read_details, read_queues, unleasable
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import JobQuery

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Process:
    """A beat or a worker that was seen in the last hour."""

    id: str
    kind: str
    host: str
    pid: int
    state: str
    """alive, silent (no heartbeat for too long) or stopped."""
    version: str
    release: str | None
    queues: tuple[str, ...]
    broker: str | None
    """Which broker it uses, without credentials."""
    claimed: int
    skew_seconds: float | None
    started_at: datetime
    heartbeat_at: datetime
    silent_seconds: float
    """Since its last heartbeat, by the server's clock."""
    app: str | None = None
    """The app whose `beat_schedule` it has."""
    unleasable: tuple[str, ...] = ()
    """The tasks whose leases it cannot keep, because they have a `Strategy` of their own."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a namespace, read by several statements in a row."""

    database: str
    namespace: str
    store: str
    epoch: int
    schema_version: int
    schema_known: int
    """The version that this release knows; lower where a newer release has upgraded the schema."""
    now: datetime
    """The server's clock."""
    skew_seconds: float
    """How far this machine's clock is ahead of the server's."""
    jobs: Mapping[str, int]
    lag_seconds: float
    """How long the most overdue job has been due."""
    dead_letters: int
    last_hour: Mapping[str, int]
    """Attempts of the slots of the last hour by state; each skipped slot counts."""
    processes: tuple[Process, ...]

    def alive(self, kind: str) -> list[Process]:
        """Return the living beats, or workers."""
        return [process for process in self.processes if process.kind == kind and process.state == "alive"]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values: dict[str, Any] = plain(asdict(self))
        return values


def read_status(store: Store, settings: Settings) -> Status:
    """Read the state of the namespace."""
    schema = store.check_schema()
    now, skew = server_clock(store)
    counts = store.counts(HOUR)
    return Status(
        database=settings.database_url.masked(),
        namespace=settings.namespace,
        store=schema.store_id,
        epoch=schema.epoch,
        schema_version=schema.version,
        schema_known=schema.known,
        now=now,
        skew_seconds=skew,
        jobs=_jobs(counts),
        lag_seconds=_lag(counts),
        dead_letters=counts.dead,
        last_hour=dict(sorted(counts.states.items())),
        processes=processes(store.nodes(HOUR), settings),
    )


def read_lag(store: Store) -> float:
    """Return how long the first due job has waited, in seconds; quarantined jobs do not wait."""
    deadlines = store.next_deadlines()
    return 0.0 if deadlines.due_at is None else max(timedelta(), deadlines.now - deadlines.due_at).total_seconds()


def processes(nodes: list[SeenNode], settings: Settings) -> tuple[Process, ...]:
    """Judge for each node whether it is alive."""
    return tuple(_process(node, settings) for node in nodes)


def server_clock(store: Store) -> tuple[datetime, float]:
    """Return the server's clock, and how far this machine's is ahead of it."""
    before = environment.now()
    server = store.pulse().now  # read halfway between
    after = environment.now()
    return server, round((before + (after - before) / 2 - server).total_seconds(), 3)


def _process(node: SeenNode, settings: Settings) -> Process:
    silent = max(0.0, (node.now - node.heartbeat_at).total_seconds())
    limit = settings.beat_alive if node.kind == "beat" else settings.worker_alive
    state = "stopped" if node.stopped_at is not None else "alive" if silent <= limit else "silent"
    return Process(
        id=node.node_id,
        kind=node.kind,
        host=node.host,
        pid=node.pid,
        state=state,
        version=node.package_version,
        release=node.code_release and named_release(node.code_release),
        app=node.code_owner,
        queues=tuple(sorted(read_queues(node.queues).consumed)),
        broker=node.broker_fingerprint,
        claimed=node.claimed,
        skew_seconds=node.skew_seconds,
        started_at=node.started_at,
        heartbeat_at=node.heartbeat_at,
        silent_seconds=round(silent, 3),
        unleasable=tuple(sorted(unleasable(node.details))),
    )


def _jobs(counts: JobCounts) -> dict[str, int]:
    names = {"set_aside": "quarantined"}  # by what the command and its JSON have always said
    fields = ("total", "active", "held", "retrying", "set_aside", "due")
    return {field: int(getattr(counts, names.get(field, field))) for field in fields}


def _lag(counts: JobCounts) -> float:
    if not isinstance(counts.due_at, datetime):
        return 0.0
    return max(timedelta(), counts.now - counts.due_at).total_seconds()


def namespace_problems(
    processes: Sequence[Process], lag_seconds: float, most_lag: float, refused: Sequence[str] = ()
) -> list[str]:
    """Return what is wrong with the namespace: no beat, late jobs, refused messages."""
    if not any(process.kind == "beat" and process.state == "alive" for process in processes):
        return ["no beat is alive: start celery -A app beat --scheduler celery_sqlbeat.Scheduler"]
    if lag_seconds > most_lag:
        return [
            f"a job has been due for {lag_seconds:.0f} s, more than {most_lag:g} s: see celery -A app sqlbeat status"
        ]
    return list(refused)


def machine_problems(processes: Sequence[Process], host: str) -> list[str]:
    """Return what is wrong here: no beat and no worker of this machine is alive."""
    if any(process.host == host and process.state == "alive" for process in processes):
        return []
    return [f"neither a beat nor a worker on {host} has said lately that it is alive"]


def hung_processes(processes: Sequence[Process], host: str, is_running: Callable[[int], bool]) -> list[str]:
    """Return what hangs here: it runs, but its heartbeat is too old, though the database answers.

    A process without a row is only starting. Of several rows with one process id the newest counts.
    """
    newest: dict[int, Process] = {}
    for process in sorted(processes, key=lambda process: process.started_at):
        if process.host == host:
            newest[process.pid] = process
    return [
        f"{process.id} has been silent for {process.silent_seconds:.0f} s, though the database answers"
        for process in newest.values()
        if process.state == "silent" and is_running(process.pid)
    ]


class WorkerTasks(NamedTuple):
    """The queues of a worker, and the tasks that it knows."""

    queues: frozenset[str]
    tasks: frozenset[str] | None
    """None where it has not reported them, as a worker of an older release."""


def read_worker_tasks(store: Store, nodes: Sequence[SeenNode], alive_seconds: float) -> list[WorkerTasks]:
    """Read the tasks of the living workers, once for all that know the same."""
    living = [
        node
        for node in nodes
        if node.kind == "worker"
        and node.stopped_at is None
        and (node.now - node.heartbeat_at).total_seconds() <= alive_seconds
    ]
    marks = {mark: node.node_id for node in living if (mark := mark_in(node.details)) is not None}
    texts = store.tasks(marks.values())
    names = {mark: names_in(texts.get(node_id), mark) for mark, node_id in marks.items()}
    return [
        WorkerTasks(frozenset(read_queues(node.queues).consumed), names.get(mark_in(node.details) or ""))
        for node in living
    ]


def tasks_of_queue(workers: Sequence[WorkerTasks], queue: str | None) -> list[frozenset[str] | None]:
    """Return the tasks that each worker of a queue knows."""
    return [worker.tasks for worker in workers if queue in worker.queues]


def refused_jobs(store: Store, nodes: Sequence[SeenNode]) -> dict[str, str]:
    """Return the jobs whose messages are refused, with the error, unless sent since."""
    failures = _reported_failures(nodes)
    rows = store.jobs(JobQuery(names=failures)) if failures else {}
    return {
        name: f"job {name} could not be published {times} times in a row: {error}"
        for name, (times, error, at) in sorted(failures.items())
        if (row := rows.get(name)) is not None and not _was_sent_since(row, at)
    }


def _reported_failures(nodes: Sequence[SeenNode]) -> dict[str, tuple[int, str, datetime]]:
    latest: dict[str, tuple[int, str, datetime]] = {}
    for node in nodes:
        if node.kind != "beat" or node.stopped_at is not None:
            continue
        for name, times, error, seconds_ago in _reports(node):
            at = node.heartbeat_at - timedelta(seconds=seconds_ago)
            if (node.now - at).total_seconds() < TOLD_SECONDS and (name not in latest or latest[name][2] < at):
                latest[name] = times, error, at
    return latest


def _reports(node: SeenNode) -> Iterator[tuple[str, int, str, float]]:
    """Read what a beat reports; what another release writes differently is passed by."""
    reports = read_details(node.details).get(KEY)
    for name, report in reports.items() if isinstance(reports, dict) else ():
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            yield str(name), int(report["times"]), str(report["error"]), min(float(report["seconds_ago"]), TOLD_SECONDS)


def _was_sent_since(row: JobRecord, at: datetime) -> bool:
    """Tell whether any beat has sent the job since, or it is disabled or in quarantine."""
    sent = [instant for instant in (row.last_run_time, row.published_at) if isinstance(instant, datetime)]
    return not row.enabled or row.quarantine is not None or any(instant > at for instant in sent)

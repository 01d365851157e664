"""How things stand in a namespace: its jobs, its beats and workers, and what became of the slots of the last hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_sqlbeat.beat.entries import named_release
from celery_sqlbeat.config import Settings
from celery_sqlbeat.details import unleasable
from celery_sqlbeat.handle.records import plain
from celery_sqlbeat.model import JobCounts, SeenNode
from celery_sqlbeat.queues import read
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.protocol import NodeStore

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Process:
    """A beat or a worker that was seen in the last hour."""

    id: str
    kind: str
    host: str
    pid: int
    state: str
    """alive, silent (not heard of for too long) or stopped."""
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
    """Whose `beat_schedule` it has."""
    unleasable: tuple[str, ...] = ()
    """The tasks of which it cannot keep the leases: they have a strategy of their own."""


@dataclass(frozen=True, slots=True)
class Status:
    """How things stand; read by a few statements one after the other."""

    database: str
    namespace: str
    store: str
    epoch: int
    schema_version: int
    schema_known: int
    """Which one this release knows; the other is higher where a newer release has upgraded the schema."""
    now: datetime
    """The server's clock."""
    skew_seconds: float
    """How far this machine's clock is ahead of the server's."""
    jobs: Mapping[str, int]
    lag_seconds: float
    """For how long the job that waits longest has been due."""
    dead_letters: int
    last_hour: Mapping[str, int]
    """How many attempts of the slots of the last hour are in each state; each skipped slot counts."""
    processes: tuple[Process, ...]

    def alive(self, kind: str) -> list[Process]:
        """The beats, or the workers, that live."""
        return [each for each in self.processes if each.kind == kind and each.state == "alive"]

    def as_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def read_status(store: Store, settings: Settings) -> Status:
    """Ask the database how things stand."""
    nodes, admin = store.nodes(), store.for_admin()
    store_id, epoch = nodes.identity()
    schema = store.check_schema()
    now, skew = server_clock(nodes)
    counts = admin.counts()
    return Status(
        database=settings.database_url.masked(),
        namespace=settings.namespace,
        store=store_id,
        epoch=epoch,
        schema_version=schema.found,
        schema_known=schema.known,
        now=now,
        skew_seconds=skew,
        jobs=_jobs(counts),
        lag_seconds=_lag(counts),
        dead_letters=counts.dead,
        last_hour=dict(sorted(admin.states(HOUR).items())),
        processes=processes(nodes.seen(HOUR), settings),
    )


def read_lag(store: Store) -> float:
    """For how many seconds the job that waits longest has been due; one that is set aside does not wait."""
    wake = store.for_beat("health").next_wake()
    return 0.0 if wake.due_at is None else max(timedelta(), wake.now - wake.due_at).total_seconds()


def processes(nodes: list[SeenNode], settings: Settings) -> tuple[Process, ...]:
    """The nodes, with what their silence means."""
    return tuple(_process(node, settings) for node in nodes)


def server_clock(nodes: NodeStore) -> tuple[datetime, float]:
    """The server's clock, and how far this machine's is ahead of it; half of the round trip is taken off."""
    before = datetime.now(timezone.utc)
    there = nodes.clock()
    after = datetime.now(timezone.utc)
    return there, round((before + (after - before) / 2 - there).total_seconds(), 3)


def _process(node: SeenNode, settings: Settings) -> Process:
    silent = max(0.0, (node.now - node.heartbeat_at).total_seconds())
    patience = settings.beat_alive if node.kind == "beat" else settings.worker_alive
    state = "stopped" if node.stopped_at is not None else "alive" if silent <= patience else "silent"
    return Process(
        id=node.node_id,
        kind=node.kind,
        host=node.host,
        pid=node.pid,
        state=state,
        version=node.package_version,
        release=node.code_release and named_release(node.code_release),
        app=node.code_owner,
        queues=tuple(sorted(read(node.queues).consumed)),
        broker=node.broker_fingerprint,
        claimed=node.claimed,
        skew_seconds=node.skew_seconds,
        started_at=node.started_at,
        heartbeat_at=node.heartbeat_at,
        silent_seconds=round(silent, 3),
        unleasable=tuple(sorted(unleasable(node.details))),
    )


def _jobs(counts: JobCounts) -> dict[str, int]:
    names = ("total", "active", "held", "retrying", "set_aside", "due")
    return {name: int(getattr(counts, name)) for name in names}


def _lag(counts: JobCounts) -> float:
    if not isinstance(counts.due_at, datetime):
        return 0.0
    return max(timedelta(), counts.now - counts.due_at).total_seconds()

"""The jobs of the storm, the settings of its shop, and what the judge knows of them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import kombu.entity

from tests.chaos.history import Job
from tests.support.brokers import Place

LEASE, MAX_LOST = 6.0, 8
MAX_RUNTIME = 4.0
VISIBILITY = 15  # seconds; of messages on Redis
SHARED, BACKLOG = "shared", "backlog"  # queues beside the one of everybody else
Exchange: Any = kombu.entity.Exchange  # kombu leaves them without types
Queue: Any = kombu.entity.Queue

SETTINGS: Mapping[str, Any] = {
    "sqlbeat_lock_timeout": LEASE,
    "sqlbeat_heartbeat_interval": 1.0,
    "sqlbeat_heartbeat_failures": 3,
    "sqlbeat_dispatch_timeout": 3.0,
    "sqlbeat_retry_base": 0.2,
    "sqlbeat_retry_max": 1.0,
    "sqlbeat_max_lost_leases": MAX_LOST,
    "sqlbeat_notice_interval": 0.5,
    "sqlbeat_poll_interval": 2,
    "result_expires": None,  # else Celery adds a job of its own, at four in the morning, that no witness knows
    "result_backend_transport_options": {"retry_policy": {"max_retries": 1, "interval_start": 0}},
    "sqlbeat_policies": {
        "fails-*": {"max_retries": 2, "cadence": "fixed_rate"},
        "overlapping-*": {"overlap": "allow", "cadence": "fixed_rate"},
        "bounded-*": {"max_runtime": MAX_RUNTIME, "cadence": "fixed_rate", "max_retries": 3},
        "*": {"cadence": "fixed_rate", "max_retries": 3},
    },
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
}

SHOP = f"""\
import tests.chaos.tasks

app.conf.broker_url = os.environ.get("CHAOS_BROKER", app.conf.broker_url)
if app.conf.broker_url.startswith("redis"):
    app.conf.broker_transport_options = {{**app.conf.broker_transport_options, "visibility_timeout": {VISIBILITY}}}
if os.environ.get("CHAOS_PLAIN"):
    app.conf.worker_prefetch_multiplier = 1
if os.environ.get("CHAOS_PLAIN") == "without the extension":  # as where it is not installed
    from celery import signals

    signals.celeryd_init.receivers.clear()
"""


class Kind(NamedTuple):
    """Jobs of one kind."""

    jobs: int
    task: str
    seconds: float
    every: float
    queue: str | None = None


KINDS = {
    "quick": Kind(8, "chaos.works", 0.1, 1),
    "late": Kind(5, "chaos.works_late", 0.6, 2),
    "long": Kind(2, "chaos.works", 2 * LEASE, 5),
    "long-late": Kind(2, "chaos.works_late", 1.5 * LEASE, 5),
    "fails": Kind(2, "chaos.fails", 0.2, 5),
    "flaky": Kind(3, "chaos.flaky", 0.3, 2),
    "retries": Kind(2, "chaos.retries", 0.2, 4),
    "overlapping": Kind(2, "chaos.works", 1.5, 1),
    "batch": Kind(2, "chaos.batch", 0, 1),
    "at-once": Kind(2, "chaos.at_once", 0, 2),
    "shared-long": Kind(2, "chaos.works", 1.5 * LEASE, 4, SHARED),
    "shared-quick": Kind(1, "chaos.works", 0.1, 2, SHARED),
    "result": Kind(3, "chaos.tells", 0.3, 1),
    "bounded": Kind(3, "chaos.works", 1.5, 2),
    "backlog": Kind(2, "chaos.works", 0.1, 2, BACKLOG),
}
REBORN = {"reborn-0": "by the package", "reborn-1": "by the package", "reborn-2": "by hand"}
REBORN_EVERY, REBORN_SECONDS = 2, 1.2
_OVERLAPPING = ("overlapping", "batch", "at-once", "shared-long", "shared-quick", "backlog")


def reborn(has_sql: bool) -> dict[str, str]:
    """Return who deletes which job; a store without SQL has nobody who does it by hand."""
    return {name: by if has_sql else "by the package" for name, by in REBORN.items()}


def jobs(reborn: Mapping[str, str]) -> dict[str, Job]:
    """Return what the judge knows, also of the jobs that are deleted now and then."""
    found = {name: _job(kind) for name, kind in _names()}
    for name, by in reborn.items():
        found[name] = Job(REBORN_EVERY, by == "by the package", 3, is_deleted=by)
    return found


def entries(place: Place) -> dict[str, Any]:
    """Return the `beat_schedule`."""
    return {name: _entry(KINDS[kind], place) for name, kind in _names()}


def add_queues(place: Place) -> None:
    """Beside the queues that every place has."""
    exchange = place.queues["default"].exchange
    for name in (SHARED, BACKLOG):
        place.queues[name] = Queue(f"{place.prefix}.{name}", Exchange(exchange.name, exchange.type), routing_key=name)


def _names() -> Iterator[tuple[str, str]]:
    for kind, made in KINDS.items():
        for number in range(made.jobs):
            yield f"{kind}-{number}", kind


def _entry(made: Kind, place: Place) -> dict[str, Any]:
    options = {} if made.queue is None else {"options": {"queue": place.queue(made.queue)}}
    return {"task": made.task, "schedule": made.every, "args": [made.seconds], **options}


def _job(kind: str) -> Job:
    return Job(
        KINDS[kind].every,
        exclusive=kind not in _OVERLAPPING,
        max_retries=2 if kind == "fails" else 3,
        always_fails=kind == "fails",
        strategy={"batch": "batch", "at-once": "at once"}.get(kind),
        stores_result=kind == "result",
        max_runtime=MAX_RUNTIME if kind == "bounded" else None,
        is_backlog=kind == "backlog",
    )

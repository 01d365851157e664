"""One run of the storm over a shop of three beats and three workers, and the history that it leaves."""

import contextlib
import itertools
import sqlite3
import subprocess
import tempfile
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from tests.chaos import history, witnesses
from tests.chaos.history import History, Job, Limits, Run
from tests.chaos.storm import Member, Storm
from tests.process.beats import Beat, Shop
from tests.process.brokers import Place, Wire
from tests.process.private import PrivateServer, private_postgresql, private_rabbitmq, private_redis

LEASE, MAX_LOST = 6.0, 8
AFTERMATH = 180.0  # seconds; everything is well again, and what is due must get its outcome
WATCHED = 15.0  # seconds without another fault after each kill that is timed
LIMITS = Limits(dispatch=3.0 + 5.0, lease=LEASE + 5.0)  # with what a busy machine needs on top
BEATS, POOLS = 3, {"prefork": 4, "threads": 6, "gevent": 10}
BROKERS = {"redis": private_redis, "rabbitmq": private_rabbitmq}
DISK = "512m"  # of the disk that runs full; an hour of history takes a tenth of it

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
    "sqlbeat_policies": {
        "fails-*": {"max_retries": 2, "cadence": "fixed_rate"},
        "overlapping-*": {"overlap": "allow", "cadence": "fixed_rate"},
        "*": {"cadence": "fixed_rate", "max_retries": 3},
    },
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
}

_SHOP = """\
import tests.chaos.tasks

app.conf.broker_url = os.environ.get("CHAOS_BROKER", app.conf.broker_url)
if app.conf.broker_url.startswith("redis"):
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "visibility_timeout": 15}
"""


class Kind(NamedTuple):
    """Jobs of one kind."""

    jobs: int
    task: str
    seconds: float
    every: float


KINDS = {
    "quick": Kind(10, "chaos.works", 0.1, 1),
    "late": Kind(5, "chaos.works_late", 0.6, 2),
    "long": Kind(2, "chaos.works", 2 * LEASE, 5),
    "long-late": Kind(2, "chaos.works_late", 1.5 * LEASE, 5),
    "fails": Kind(2, "chaos.fails", 0.2, 5),
    "flaky": Kind(3, "chaos.flaky", 0.3, 2),
    "retries": Kind(2, "chaos.retries", 0.2, 4),
    "overlapping": Kind(2, "chaos.works", 1.5, 1),
}


class Report(NamedTuple):
    """What a run came to."""

    seed: int
    faults: Counter[str]
    bodies: int
    runs: Counter[str]
    broken: list[str]
    folder: Path


def run(
    seconds: float, database: str, broker: str, seed: int, folder: Path, tell: Callable[[str], None] = print
) -> Report:
    """Let a storm rage for so long; returns what it did, and which promises were broken."""
    with contextlib.ExitStack() as stack:
        servers: dict[str, PrivateServer] = {broker: stack.enter_context(BROKERS[broker]())}
        disk: Path | None = None
        if database == "postgresql":
            servers["database"] = stack.enter_context(private_postgresql())
            url = _made(servers["database"])
        else:
            disk = stack.enter_context(_small_disk(tell))
            url = f"sqlite:///{(disk or folder) / 'beat.db'}"
        shop = Shop(folder, url, Place(broker, servers[broker].url))
        stack.callback(shop.close)
        shop.store.migrate()
        shop.write(_entries(), extra=_SHOP, **SETTINGS)
        ends = {"broker": servers[broker].url} | ({"database": url} if "database" in servers else {})
        members = [_beat(shop, _wires(stack, ends)) for _ in range(BEATS)]
        members += [_worker(shop, _wires(stack, ends), pool, slots) for pool, slots in POOLS.items()]
        storm = Storm(seed, members, servers, disk)
        stack.callback(storm.kill)
        storm.rage(seconds, tell)
        _settle(shop, storm, shop.now())
        for kind in ("worker", "beat"):
            time.sleep(WATCHED)  # a beat that was just born takes no leases yet
            storm.kill_one(kind, tell)
            time.sleep(WATCHED)
            storm.calm()
        until = shop.now()
        _settle(shop, storm, until)
        storm.stop()
        seen = _history(shop, storm, until)
        broken = [*history.broken_promises(seen), *(f"not as told: {text}" for text in storm.strangers)]
        states = Counter(each.state for each in seen.runs)
        return Report(seed, storm.faults, len(seen.bodies), states, broken, folder)


def _settle(shop: Shop, storm: Storm, until: datetime) -> History:
    """Wait until everything that was due has its outcome; what is missing then is found by the rules."""
    end = time.monotonic() + AFTERMATH
    while True:
        storm.calm()  # a child's death may have ended a process just now
        seen = _history(shop, storm, until)
        if time.monotonic() > end or not list(history.one_outcome_for_each_slot(seen)):
            return seen
        time.sleep(1.0)


def _history(shop: Shop, storm: Storm, until: datetime) -> History:
    witness = shop.folder / "witness.log"
    bodies = witnesses.read(witness.read_text().splitlines()) if witness.exists() else []
    jobs = {name: _job(kind, KINDS[kind]) for name, kind in _names()}
    clock = time.monotonic() - shop.now().timestamp()
    rows = _rows(shop.database_url)
    return History(bodies, rows, jobs, storm.freezes, until, MAX_LOST, clock, storm.kills, LIMITS)


def _job(kind: str, made: Kind) -> Job:
    return Job(made.every, kind != "overlapping", 2 if kind == "fails" else 3, kind == "fails")


def _names() -> Iterator[tuple[str, str]]:
    for kind, made in KINDS.items():
        for number in range(made.jobs):
            yield f"{kind}-{number}", kind


def _entries() -> dict[str, Any]:
    return {
        name: {"task": KINDS[kind].task, "schedule": KINDS[kind].every, "args": [KINDS[kind].seconds]}
        for name, kind in _names()
    }


def _beat(shop: Shop, wires: Mapping[str, Wire]) -> Member:
    return Member("beat", lambda: shop.start(**_environ(wires)), wires)


def _worker(shop: Shop, wires: Mapping[str, Wire], pool: str, slots: int) -> Member:
    numbers = itertools.count()

    def start() -> Beat:
        name = f"{pool}-{next(numbers)}"
        log = shop.folder / f"worker-{name}.log"
        options = ["--pool", pool, "--concurrency", str(slots), "--hostname", f"{name}@%h"]
        options += ["--queues", shop.place.queue("default"), "--without-mingle", "--without-gossip"]
        return Beat(shop.spawn(log, "worker", *options, **_environ(wires)), log)

    return Member("worker", start, wires)


def _environ(wires: Mapping[str, Wire]) -> dict[str, str]:
    found = {"CHAOS_BROKER": wires["broker"].url}
    if "database" in wires:
        found["SQLBEAT_DATABASE_URL"] = wires["database"].url
    return found


def _wires(stack: contextlib.ExitStack, ends: Mapping[str, str]) -> dict[str, Wire]:
    """Lines of one process's own."""
    found = {name: Wire(url) for name, url in ends.items()}
    for wire in found.values():
        stack.callback(wire.close)
    return found


def _made(server: PrivateServer) -> str:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE chaos")
    return urllib.parse.urlsplit(server.url)._replace(path="/chaos").geturl()


@contextlib.contextmanager
def _small_disk(tell: Callable[[str], None]) -> Iterator[Path | None]:
    """A disk that can be filled, where this user may mount one."""
    with tempfile.TemporaryDirectory(prefix="sqlbeat_test_") as name:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", name], capture_output=True, text=True, check=False
        )
        if mounted.returncode != 0:
            tell(f"no disk runs full: {mounted.stderr.strip()}")
            yield None
            return
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


_COLUMNS = (
    "RunId, JobName, Kind, ScheduledFor, LastSlot, SlotCount, Attempt, State, Reason, Fence, Failures, LostLeases, "
    "FinishedAt"
)


def _rows(url: str) -> list[Run]:
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
            read = file.execute(f"SELECT {_COLUMNS} FROM JobRuns").fetchall()
        return [
            Run._make((*row[:3], _instant(row[3]), _instant(row[4]), *row[5:12], _instant(row[12]))) for row in read
        ]
    with psycopg.connect(url, options="-c timezone=UTC") as connection:
        stored: list[Any] = connection.execute(f"SELECT {_COLUMNS} FROM JobRuns").fetchall()
        return [Run._make((str(row[0]), *row[1:])) for row in stored]


def _instant(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=timezone.utc)

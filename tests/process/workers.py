"""Real `celery worker` processes for tests.

What they are sent, what their tasks wrote down, and what the rows say.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import psycopg

from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.model import AddJob, Claim, JobDraft, JobRecord, RunRecord, SeenNode
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import CLAIMED, RUNNING, Ending, ExpiredLease, after_ended_lease
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.publish.publisher import Publisher
from celery_sqlbeat.store.records import JobQuery
from tests import mariadb
from tests.support.beats import LONG, Beat, Shop, wait_for
from tests.support.brokers import Place
from tests.support.claiming import claim_due
from tests.support.views import AdminView, BeatView, NodeView

LEASE, HEARTBEAT, FAILURES = 6.0, 1.0, 3  # seconds; room for a busy machine, and short enough to wait for its end
PATIENCE = 60.0  # seconds; far more than anything here takes on a machine that is not busy
CLOCKS = 0.05  # seconds between the clock of a process and that of the server on the same machine, roundings included
AT_ONCE = 6  # lanes that are played together; more would only wait for the processors
POOLS = ("prefork", "threads", "gevent", "eventlet", "solo")


class Lane(NamedTuple):
    """What a test runs on."""

    pool: str
    broker: str
    database: str
    acks: str

    @property
    def late(self) -> bool:
        """Whether messages are acknowledged when the task has ended."""
        return self.acks == "late"


# Every pool, broker, database and way to acknowledge, in few combinations.
LANES = (
    Lane("prefork", "redis", "postgresql", "late"),
    Lane("prefork", "rabbitmq", "sqlite", "early"),
    Lane("threads", "rabbitmq", "postgresql", "late"),
    Lane("gevent", "redis", "postgresql", "late"),
    Lane("eventlet", "rabbitmq", "sqlite", "late"),
    Lane("gevent", "rabbitmq", "mysql", "late"),
    Lane("solo", "redis", "mysql", "early"),
)
ALL_LANES = tuple(
    itertools.starmap(
        Lane, itertools.product(POOLS, ("redis", "rabbitmq"), ("postgresql", "mysql", "sqlite"), ("late", "early"))
    )
)


def lanes(*pools: str, among: Sequence[Lane] = LANES) -> list[Lane]:
    """Return the lanes of these pools; all combinations where the long variants are asked for."""
    return [lane for lane in (ALL_LANES if LONG else among) if lane.pool in (pools or POOLS)]


def lane_name(lane: Lane) -> str:
    """How a lane is called in the name of a test."""
    return "-".join(lane)


class Line(NamedTuple):
    """What a task wrote down."""

    what: str
    task: str
    run: str
    retries: int
    pid: int
    at: float
    job: str | None
    attempt: int | None
    fence: int | None
    more: dict[str, Any]


class Worker(Beat):
    """One worker with what it has started."""

    def signal_main(self, number: int) -> None:
        """Send a signal to the main process alone."""
        self.process.send_signal(number)

    def children(self) -> list[int]:
        """Return the processes of its pool."""
        try:
            return [child.pid for child in psutil.Process(self.process.pid).children()]
        except psutil.NoSuchProcess:
            return []

    def ready(self) -> "Worker":
        """Wait until it takes messages."""
        self.says(" ready.", seconds=PATIENCE)
        return self

    def stop(self, seconds: float = PATIENCE) -> float:
        """End it in order: a warm shutdown."""
        return super().stop(seconds)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for its end; returns the exit code."""
        return super().wait(seconds)


class WorkerShop(Shop):
    """A shop with workers.

    The test itself claims and publishes, so that no beat has to be waited for.
    """

    def __init__(self, folder: Path, database_url: str, place: Place) -> None:
        super().__init__(folder, database_url, place)
        (folder / "results").mkdir()
        self.conf = {
            "sqlbeat_lock_timeout": LEASE,
            "sqlbeat_heartbeat_interval": HEARTBEAT,
            "sqlbeat_heartbeat_failures": FAILURES,
            "sqlbeat_retry_base": 0.5,
            "sqlbeat_max_retries": 3,
            "sqlbeat_notice_interval": 0.5,
            "sqlbeat_poll_interval": 2,
            "sqlbeat_policies": {},
            "result_backend": f"file://{folder / 'results'}",
            "event_exchange": f"{place.prefix}.events",
            "control_exchange": f"{place.prefix}.control",
            "worker_send_task_events": True,
            "worker_log_format": "[%(asctime)s: %(levelname)s/%(processName)s] %(name)s: %(message)s",
            "broker_connection_retry_on_startup": True,
            "worker_cancel_long_running_tasks_on_connection_loss": False,
        }
        self.workers: list[Worker] = []
        self.max_lost_leases = 5
        self._publisher: Publisher | None = None
        self._numbers = itertools.count(1)

    def write_app(self, lane: Lane | None = None, extra: str = "", **conf: Any) -> None:
        """Write the shop's module, with the tasks of workers."""
        rules = [key for key in conf if key.startswith("sqlbeat_") and key != "sqlbeat_database_url"]
        self.conf.update({key: conf[key] for key in rules})
        late = {} if lane is None else {"task_acks_late": lane.late}
        self.write(
            conf.pop("beat_schedule", {}),
            conf.pop("broker_url", None),
            f"import tests.process.worker_tasks\n{extra}",
            **{**late, **conf},
        )

    def work(self, pool: str = "prefork", *options: str, concurrency: int = 4, **environ: str) -> Worker:
        """Start a worker; `ready` waits for it."""
        number = len(self.workers)
        log = self.folder / f"worker-{number}.log"
        arguments = ["--pool", pool, "--concurrency", str(concurrency), "--queues", self.place.queue("default")]
        arguments += ["--hostname", f"w{number}-{self.place.prefix}@%h", "--without-mingle", "--without-gossip"]
        worker = Worker(self.spawn(log, "worker", *arguments, *options, **environ), log)
        self.workers.append(worker)
        return worker

    # What is sent

    def order(self, task: str, *args: Any, name: str | None = None, **fields: Any) -> str:
        """Add a job that is due now; returns its name."""
        name = name or f"{task.removeprefix('work.')}-{next(self._numbers)}"
        fields = {key: json.dumps(value) if isinstance(value, dict) else value for key, value in fields.items()}
        draft = JobDraft(name, task, "every 1h", None, json.dumps(args), None, None, None, True, None, self.now(), None)
        assert AdminView(self.store).write_jobs([AddJob(draft._replace(**fields))]).done == {name}
        return name

    def claim(self) -> dict[str, Claim]:
        """Claim what is due; returns the claims by the names of their jobs."""
        conf = self.conf
        rules = Rules(
            policies_from_setting(conf["sqlbeat_policies"]),
            "UTC",
            conf["sqlbeat_lock_timeout"],
            conf["sqlbeat_max_retries"],
        )
        claimed = claim_due(BeatView(self.store, "beat of the test"), Planner(rules), 1000, 15.0)
        assert not claimed.quarantines
        return {claim.job_name: claim for claim in claimed.claims}

    def publish(self, *claims: Claim, store_id: str = "", namespace: str = "", mark: bool = True) -> None:
        """Publish claims, as the beat of this store and namespace or of another one."""
        if self._publisher is None:
            self._publisher = Publisher(self.place.app())
        self._publisher.identify(
            store_id or self.store.check_schema().store_id, namespace or self.conf.get("sqlbeat_namespace", "default")
        )
        self._publisher.connect(10)
        for at in range(0, len(claims), 500):
            sent = self._publisher.publish(claims[at : at + 500], time.monotonic() + 30)
            assert not sent.failed
        if mark:
            beat = BeatView(self.store, "beat of the test")
            leased = [(claim, claim.lease_seconds) for claim in claims if claim.exclusive]
            beat.mark_published(leased)
            beat.mark_dispatched([claim for claim in claims if not claim.exclusive])

    def dispatch(self) -> dict[str, Claim]:
        """Claim and publish what is due."""
        claims = self.claim()
        self.publish(*claims.values())
        return claims

    def dispatch_until(self, done: Callable[[], Any], seconds: float = PATIENCE) -> None:
        """Be the beat until something is so: claim, publish, and take over what ended."""

        def turn() -> Any:
            self.reap()
            self.dispatch()
            return done()

        wait_for(turn, seconds, lambda: "\n".join([*map(str, self.runs()), self.logs()]))

    def reap(self) -> set[str]:
        """Take over leases that ended, as a beat does; returns the run ids."""
        beat = BeatView(self.store, "beat of the test")
        endings = []
        for lease in beat.ended(1000):
            facts = ExpiredLease.of(lease)
            follows = after_ended_lease(facts, self.max_lost_leases, False)
            if isinstance(follows, Ending):
                endings.append((lease, follows))
        return beat.reclaim(endings)

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """Send a task as any program does, without our header."""
        app = self.place.app()
        sent: str = app.send_task(task, args, **options).id
        app.close()
        return sent

    def control(self, command: str, **arguments: Any) -> None:
        """Send a command to all workers of this shop."""
        app = self.place.app(control_exchange=self.conf["control_exchange"])
        with app.connection_for_write() as connection:  # kombu's pool may hold one that another test has spoilt
            app.control.broadcast(command, arguments=arguments, connection=connection)
        app.close()

    def wait_for_answer(self) -> None:
        """Wait until a worker answers: its main process is no longer busy with what it did before.

        A SIGQUIT that comes while Celery writes a task into the pipe of a child makes its pool wait
        for ever.
        """
        app = self.place.app(control_exchange=self.conf["control_exchange"])
        with app.connection_for_write() as connection:  # as above
            assert app.control.ping(timeout=PATIENCE, limit=1, connection=connection), self.logs()
        app.close()

    # What is seen

    def lines(self, *jobs: str, what: str | None = None) -> list[Line]:
        """Return what tasks wrote down, of these jobs or of all."""
        try:
            text = (self.folder / "witness.log").read_text()
        except FileNotFoundError:
            return []
        found = []
        for row in map(json.loads, text.splitlines()):
            line = Line(**{name: row.pop(name) for name in Line._fields[:-1]}, more=row)
            if (not jobs or line.job in jobs) and what in (None, line.what):
                found.append(line)
        return found

    def starts(self, *jobs: str) -> list[Line]:
        """When bodies began."""
        return self.lines(*jobs, what="start")

    def wait_for_start(self, job: str, times: int = 1) -> Line:
        """Wait until the body of a job's task has begun so often; returns the last start."""
        wait_for(lambda: len(self.starts(job)) >= times, PATIENCE, self.logs)
        return self.starts(job)[-1]

    def wait_for_line(self, what: str, *jobs: str, times: int = 1) -> None:
        """Wait until tasks have written this down."""
        wait_for(lambda: len(self.lines(*jobs, what=what)) >= times, PATIENCE, self.logs)

    def attempts(self, job: str) -> list[RunRecord]:
        """Return the history of a job, oldest first."""
        return sorted(
            (run for run in self.runs() if run.job_name == job), key=lambda run: (run.scheduled_for, run.attempt)
        )

    def states(self, job: str) -> list[str]:
        """Return the states of a job's attempts, oldest first."""
        return [run.state for run in self.attempts(job)]

    def job(self, name: str) -> JobRecord:
        """Return the row of a job."""
        return AdminView(self.store).jobs(JobQuery(names=[name]))[name]

    def wait_for_states(self, job: str, *states: str, seconds: float = PATIENCE) -> list[RunRecord]:
        """Wait until the attempts of a job are in these states; returns them."""
        wait_for(lambda: self.states(job) == list(states), seconds, lambda: f"{job}: {self.states(job)}\n{self.logs()}")
        return self.attempts(job)

    def wait_for_outcome(self, *jobs: str, seconds: float = PATIENCE) -> None:
        """Wait until these jobs are free, and no run of theirs is claimed or running."""

        def are_out() -> bool:
            rows = AdminView(self.store).jobs(JobQuery(names=jobs)).values()
            busy = {run.job_name for run in self.runs() if run.state in (CLAIMED, RUNNING)}
            return all(row.locked_by is None for row in rows) and not busy & set(jobs)

        wait_for(are_out, seconds, lambda: f"{[run for run in self.runs() if run.job_name in jobs]}\n{self.logs()}")

    def worker_nodes(self) -> list[SeenNode]:
        """Return the workers that have registered."""
        return [node for node in NodeView(self.store).seen(3600) if node.kind == "worker"]

    def results(self) -> dict[str, dict[str, Any]]:
        """Return what lies in the result backend, by task id."""
        found = {}
        for file in (self.folder / "results").glob("celery-task-meta-*"):
            with contextlib.suppress(ValueError):  # it is just being written
                found[file.name.removeprefix("celery-task-meta-")] = json.loads(file.read_text())
        return found

    @contextlib.contextmanager
    def events(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the events that the workers send meanwhile."""
        heard: list[dict[str, Any]] = []
        with Ears(self, heard):
            yield heard

    @contextlib.contextmanager
    def row_locked(self, job: str) -> Iterator[None]:
        """Lock the row of a job (on SQLite the whole file), so that no start can be written."""
        if self.database_url.startswith("sqlite"):
            file = sqlite3.connect(self.folder / "beat.db", isolation_level=None)
            file.execute("PRAGMA busy_timeout = 10000")
            file.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                file.execute("ROLLBACK")
                file.close()
            return
        if self.database_url.startswith("mysql"):
            with contextlib.closing(mariadb.connect(self.database_url)) as holder:
                mariadb.execute(holder, "START TRANSACTION")
                mariadb.execute(holder, "SELECT 1 FROM Jobs WHERE JobName = ? FOR UPDATE", (job,))
                yield
            return
        with psycopg.connect(self.database_url) as connection:
            connection.execute("SELECT 1 FROM Jobs WHERE JobName = %s FOR UPDATE", (job,))
            yield
            connection.rollback()

    def logs(self) -> str:
        """Return what there is to know about a failure."""
        witness = "\n".join(str(line) for line in self.lines()[-40:])
        workers = "\n".join(f"--- {each._log.name}\n{each.log[-6000:]}" for each in self.workers)
        return f"{super().logs()}\n{workers}\n--- witness\n{witness}"

    def close(self) -> None:
        """End what is left."""
        for worker in self.workers:
            for child in worker.children():  # where only some of them were stopped
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                worker.signal(signal.SIGKILL)
            worker.process.wait(PATIENCE)
        if self._publisher is not None:
            self._publisher.close()
        super().close()


def together(shops: Mapping[Lane, WorkerShop], scenario: Callable[[WorkerShop, Lane], None]) -> None:
    """Play a scenario on several lanes at once: it waits for most of its time."""
    with ThreadPoolExecutor(AT_ONCE) as executor:
        played = {lane: executor.submit(scenario, shop, lane) for lane, shop in shops.items()}
    failures = {lane_name(lane): error for lane, one in played.items() if (error := one.exception()) is not None}
    assert not failures, "\n".join(f"=== {name}: {type(error).__name__}: {error}" for name, error in failures.items())


class Ears:
    """Listens to the events of workers in a thread."""

    def __init__(self, shop: WorkerShop, heard: list[dict[str, Any]]) -> None:
        self._shop, self._heard = shop, heard

    def __enter__(self) -> "Ears":
        self._listens, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        assert self._listens.wait(PATIENCE)
        return self

    def _listen(self) -> None:
        app = self._shop.place.app(event_exchange=self._shop.conf["event_exchange"])
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": self._heard.append})
            with receiver.consumer_context(wakeup=False) as (consuming, _channel, _consumers):
                with contextlib.suppress(TimeoutError):
                    consuming.drain_events(timeout=0.2)  # on Redis this is what subscribes
                self._listens.set()
                while not self._over.is_set():
                    with contextlib.suppress(TimeoutError):
                        consuming.drain_events(timeout=0.2)
        app.close()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)


def read_lease(shop: WorkerShop, job: str) -> float:
    """Return the seconds that the lease of a job has left."""
    row = shop.job(job)
    assert row.lease_ends_at is not None
    left: timedelta = row.lease_ends_at - row.now
    return left.total_seconds()


def assert_calm(*workers: Worker, but: str = "") -> None:
    """No worker met an error of ours that it did not expect.

    What tasks raise is theirs, and `but` is Celery's own.
    """
    for worker in workers:
        words = {"note how a task ended", "Unrecoverable error", "callback raised"} - {but}
        assert not [word for word in words if word in worker.log], worker.log
        ours = re.findall(r"\] celery_sqlbeat[^\n]*(?:\n(?!\[)[^\n]*)*Traceback", worker.log)
        assert not ours, f"{ours}\n{worker.log}"


def assert_one_start_each(shop: WorkerShop) -> None:
    """No attempt began twice or without its lease, and no two runs of an exclusive job at once."""
    runs = {run.run_id: run for run in shop.runs()}
    starts = [line for line in shop.starts() if line.job is not None]  # what replaces a task has its id, but no claim
    twice = [key for key, count in Counter((line.run, line.retries) for line in starts).items() if count > 1]
    assert not twice, f"{twice}\n{shop.logs()}"
    for line in starts:
        run = runs[line.run]
        assert run.started_at is not None, f"{line}\n{run}\n{shop.logs()}"
        assert run.started_at.timestamp() <= line.at + CLOCKS, f"{line}\n{run}\n{shop.logs()}"

"""One simulated world: its settings, jobs, processes and faults come from the seed, and so does all that happens."""

import logging
from collections.abc import Collection
from datetime import datetime, timedelta
from functools import cache
from random import Random
from typing import Any

from celery import Celery

from celery_sqlbeat.config import Settings
from tests.simulation.beats import Beat, Host
from tests.simulation.broker import Broker
from tests.simulation.database import Server
from tests.simulation.faults import KINDS, STORMY_SECONDS, schedule
from tests.simulation.hub import BusyLoop, Hub, Process
from tests.simulation.jobs import STARTS, spec
from tests.simulation.ledger import Ledger, Violation
from tests.simulation.operators import Operator
from tests.simulation.rows import instant
from tests.simulation.run_checks import FINAL
from tests.simulation.witness import Witness
from tests.simulation.workers import Worker

CALM_SECONDS = 2400.0  # far beyond the longest way of a slot to its outcome
_WATCH_SECONDS = 0.25
_LATE_SECONDS = 90.0  # once all is calm, nothing is due for so long


@cache
def app() -> Any:
    """An app that connects nowhere."""
    made = Celery("simulated", broker="memory://", set_as_current=False)
    made.conf.timezone = "UTC"
    return made


def _settings(rng: Random) -> Settings:
    lease, heartbeat = rng.choice([(20.0, 5.0), (30.0, 6.0), (30.0, 8.0)])
    return Settings(
        namespace="default",
        create_tables=False,
        lock_timeout=lease,
        heartbeat_interval=heartbeat,
        dispatch_timeout=rng.choice([6.0, 12.0]),
        poll_interval=rng.choice([10.0, 30.0]),
        notice_interval=rng.choice([0.0, 2.0, 5.0]),
        worker_memory=rng.choice([60.0, 3600.0]),
        batch_size=rng.choice([2, 5, 500]),
        max_retries=rng.choice([0, 1, 3]),
        max_lost_leases=rng.choice([1, 3]),
        retry_max=rng.choice([10.0, 40.0]),
        history_days=rng.choice([0.005, 7.0]),
    )


class World:
    """Everything that there is."""

    namespace = "default"

    def __init__(self, seed: int, only: Collection[int] | None = None) -> None:
        """`only`: of the faults, those that happen."""
        logging.disable(logging.CRITICAL)
        self.seed = seed
        self.rng = Random(seed)
        self.start: datetime = self.rng.choice(STARTS)
        self.settings = _settings(self.rng)
        self.app = app()
        self.hub = Hub()
        self.ledger = Ledger(self.hub, self.settings)
        self.witness = Witness(self.ledger)
        self.server = Server(self.hub, self.rng, self.start, self.witness)
        self.broker = Broker(self.hub, self.rng, self.witness)
        self._names: dict[str, int] = {"beat": 0, "worker": 0, "job": 0}
        self._hosts: list[Host] = []
        self.is_calm = False
        self._most_steps = 0
        self.server.migrate()
        self.operator = Operator(self)
        for _ in range(self.rng.randint(3, 9)):
            self.add_job()
        for kind, count in ((Beat, self.rng.randint(1, 3)), (Worker, self.rng.randint(1, 3))):
            for _ in range(count):
                self._spawn(kind)
        self.faults = schedule(seed)
        for fault in self.faults:
            if only is None or fault.number in only:
                self.hub.at(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        self._watch()

    def wall(self, skew: float) -> datetime:
        """The clock of a host that is wrong by so much."""
        return self.start + timedelta(seconds=self.hub.now + skew)

    def hosts(self) -> list[Host]:
        """The processes that live."""
        return [host for host in self._hosts if host.alive]

    def add_job(self, name: str | None = None) -> None:
        """Add a job by hand: a new one, or again one that was deleted."""
        if name is None:
            self._names["job"] += 1
            name = f"job{self._names['job']}"
        made = spec(self.rng, name, self.settings.lock_timeout)
        row = {"Id": self.operator.ids.one(), **made.columns}
        if self.rng.random() < 0.5:
            row["NextRunTime"] = self.server.clock() + timedelta(seconds=self.rng.uniform(-100, 20))
        self.ledger.specs[row["Id"]] = made
        text = f"INSERT INTO Jobs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        self.server.by_hand(self.operator, text, *row.values())

    def died(self, host: Host) -> None:
        """A process is gone; whoever looks after processes starts another one."""
        self._hosts.remove(host)
        self.ledger.did("death")
        kind = type(host)
        self.hub.after(0.5 if self.is_calm else 10.0 * self.rng.random(), lambda: self._spawn(kind))

    def unexpected(self, process: Process, error: Exception) -> None:
        """The code raised what nobody expects."""
        self.ledger.note(None, f"{process.name} raised {error!r}")
        violation = Violation("error", f"{process.name} raised {type(error).__name__}: {error}", None)
        self.ledger.violation = self.ledger.violation or violation
        raise violation from error

    def run(self, steps: int) -> Violation | None:
        """Live through storm and calm, for at most so many steps; returns the invariant that did not hold."""
        self._most_steps = steps
        try:
            self.hub.run(STORMY_SECONDS, self._wants_more)
            self._calm_down()
            self._settle()
        except Violation as violation:
            return self.ledger.violation or violation
        except BusyLoop as loop:
            return Violation("error", f"a busy loop: {loop}", None)
        return self.ledger.violation

    def close(self) -> None:
        """Leave nothing behind."""
        for host in [*self._hosts, self.operator]:
            host.forget()
        self.server.connection.close()

    def _wants_more(self) -> bool:
        return self.ledger.steps < self._most_steps and self.ledger.violation is None

    def _spawn(self, kind: type[Host]) -> None:
        name = kind.__name__.lower()
        self._names[name] += 1
        self.ledger.did("birth")
        self._hosts.append(kind(self, f"{name}-{self._names[name]}"))

    def _strike(self, fault: Any) -> None:
        self.ledger.note(
            None, f"fault {fault.number}: {fault.kind} ({fault.which:.3f}, {fault.how:.3f}, {fault.much:.3f})"
        )
        KINDS[fault.kind](self, fault)

    def _watch(self) -> None:
        self.witness.body_checks.watch()
        self.hub.after(_WATCH_SECONDS, self._watch)

    def _calm_down(self) -> None:
        """Nothing goes wrong any more."""
        self.is_calm = True
        self.ledger.note(None, "from here on nothing goes wrong")
        server, broker = self.server, self.broker
        server.away_until = server.slow_until = broker.away_until = -1.0
        broker.swallows_until = broker.loses_until = broker.doubles_until = broker.delays_until = -1.0
        for host in [*self._hosts, self.operator]:
            host.link.cut_until = -1.0
            host.link.armed.clear()

    def _settle(self) -> None:
        """Everything that is due gets its outcome within a bounded time."""
        waiting = {run.run_id for run in self.ledger.runs.values() if not run.is_gap}
        began = self.hub.now
        while self._wants_more() and self.hub.now < began + CALM_SECONDS:
            self.hub.run(self.hub.now + 10.0, self._wants_more)
            waiting = {run_id for run_id in waiting if self._waits(run_id)}
            if not waiting and self.hub.now > began + 2 * _LATE_SECONDS:
                break
        if self._wants_more():
            for run_id in sorted(waiting):
                run = self.ledger.runs[run_id]
                text = f"{run.job_name} {run.scheduled_for} attempt {run.attempt} is still {run.state}"
                self.ledger.fail("liveness", text, run.job_id)
            self._is_on_time()

    def _waits(self, run_id: str) -> bool:
        """Whether an attempt, or one that followed it, has still to end."""
        run = self.ledger.runs.get(run_id)
        job = self.ledger.jobs.get(run.job_id) if run is not None else None
        if (
            run is None
            or job is None
            or run.slot in self.ledger.purged
            or not job.enabled
            or job.quarantine is not None
        ):
            return False
        attempts = [self.ledger.runs[other] for other in self.ledger.slots[run.slot]]
        latest = max(attempts, key=lambda one: one.attempt)
        return latest.state not in FINAL

    def _is_on_time(self) -> None:
        now = self.server.clock()
        for job in self.ledger.jobs.values():
            due = job.retry_at or job.next_run_time
            is_late = due is None or (now - instant(due)).total_seconds() > _LATE_SECONDS
            is_late = is_late and self.ledger.touched[job.id] < self.hub.now - _LATE_SECONDS
            if is_late and job.enabled and job.quarantine is None and job.locked_by is None:
                self.ledger.fail("liveness", f"{job.job_name} is due at {due}, and it is {now}", job.id)
            if job.quarantine is not None:
                self.ledger.fail("liveness", f"{job.job_name} is set aside: {job.quarantine}", job.id)

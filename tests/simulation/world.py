"""One simulated world.

Its settings, jobs, processes and faults come from the seed, and so does all that happens.
"""

import logging
from collections.abc import Collection
from datetime import datetime, timedelta
from functools import cache
from random import Random
from typing import Any

from celery import Celery

from celery_sqlbeat.config.settings import Settings
from tests.simulation.beats import Beat, Host
from tests.simulation.broker import VANILLA, Broker
from tests.simulation.database import Server
from tests.simulation.faults import KINDS, STORMY_SECONDS, schedule
from tests.simulation.hub import BusyLoop, Hub, Process
from tests.simulation.jobs import STARTS, spec
from tests.simulation.ledger import Ledger, Violation
from tests.simulation.operators import Operator
from tests.simulation.plain import Plain
from tests.simulation.rows import JobRow, RunRow, instant
from tests.simulation.run_checks import FINAL
from tests.simulation.witness import Witness
from tests.simulation.workers import Worker

CALM_SECONDS = 3600.0  # four times the longest way of one slot to its outcome
_WATCH_SECONDS = 0.25
_LATE_SECONDS = 90.0  # once all is calm, nothing is due for so long


@cache
def app() -> Any:
    """Return an app that connects nowhere."""
    made = Celery("simulated", broker="memory://", set_as_current=False)
    made.conf.update(timezone="UTC")
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
        republish=rng.choice(["auto", "auto", "auto", "auto", "never"]),
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
        self._names: dict[str, int] = {"beat": 0, "worker": 0, "job": 0, "plain": 0}
        self.plains: list[Plain] = []
        self._hosts: list[Host] = []
        self.is_calm = False
        self._most_steps = 0
        # In some worlds everything is fired and forgotten: no worker that keeps leases consumes the
        # only queue.
        self.only_queue = VANILLA if self.rng.random() < 0.15 else None
        self.server.migrate()
        self.tells_address = self.rng.choice([0.5, 1.0, 1.0])
        """How often a worker with the extension knows the address of its own connection."""
        self.names_connections = self.rng.choice([0.0, 0.5, 1.0])
        """How often it gives that connection a name."""
        self.operator = Operator(self)
        # With few jobs beats look rarely, and the first look after a message is the one that
        # decides.
        for _ in range(self.rng.randint(1, 2) if self.rng.random() < 0.3 else self.rng.randint(3, 9)):
            self.add_job()
        for kind, count in ((Beat, self.rng.randint(1, 3)), (Worker, self.rng.randint(1, 3))):
            for _ in range(count):
                self._spawn(kind)
        self.has_plains = self.rng.random() < 0.5
        for _ in range(self.rng.randint(0, 2) if self.has_plains else 0):
            self.add_plain()
        self.faults = schedule(seed)
        for fault in self.faults:
            if only is None or fault.number in only:
                self.hub.at(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        self._watch()

    def wall(self, skew: float) -> datetime:
        """Return the clock of a host that is wrong by so much."""
        return self.start + timedelta(seconds=self.hub.now + skew)

    def hosts(self) -> list[Host]:
        """Return the processes that live."""
        return [host for host in self._hosts if host.alive]

    def add_job(self, name: str | None = None) -> None:
        """Add a job by hand: a new one, or again one that was deleted."""
        if name is None:
            self._names["job"] += 1
            name = f"job{self._names['job']}"
        made = spec(self.rng, name, self.settings.lock_timeout, self.only_queue)
        row = {"Id": self.operator.ids.random_id(), **made.columns}
        if self.rng.random() < 0.5:
            row["NextRunTime"] = self.server.clock() + timedelta(seconds=self.rng.uniform(-100, 20))
        self.ledger.specs[row["Id"]] = made
        text = f"INSERT INTO Jobs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        self.server.by_hand(self.operator, text, *row.values())

    def add_plain(self) -> None:
        """Start a worker without the extension."""
        self._names["plain"] += 1
        self.ledger.did("plain birth")
        self.plains.append(Plain(self, f"plain-{self._names['plain']}"))

    def died(self, host: Host) -> None:
        """Let a process go; its supervisor starts another one."""
        self._hosts.remove(host)
        self.ledger.did("death")
        kind = type(host)
        self.hub.after(0.5 if self.is_calm else 10.0 * self.rng.random(), lambda: self._spawn(kind))

    def unexpected(self, process: Process, error: Exception) -> None:
        """Fail: the code raised what nobody expects."""
        self.ledger.note(None, f"{process.name} raised {error!r}")
        violation = Violation("error", f"{process.name} raised {type(error).__name__}: {error}", None)
        self.ledger.violation = self.ledger.violation or violation
        raise violation from error

    def run(self, steps: int) -> Violation | None:
        """Live through storm and calm, for at most so many steps.

        Returns the invariant that did not hold.
        """
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
        for host in [*self._hosts, *self.plains, self.operator]:
            host.forget()
        self.server.connection.close()

    def _wants_more(self) -> bool:
        # What happens without a statement, such as a check by time, still belongs to the last step.
        return self.ledger.steps <= self._most_steps and self.ledger.violation is None

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
        broker.in_flight.clear()
        broker.swallows_until = broker.loses_until = broker.doubles_until = broker.delays_until = -1.0
        for host in [*self._hosts, self.operator]:
            host.link.cut_until = -1.0
            host.link.armed.clear()

    def _settle(self) -> None:
        """Everything that is due gets its outcome within a bounded time.

        The slots of a job come one after the other: each may take so long since the one before it
        ended. Where the server's clock was set back, all that it has dated waits until it is there
        again.
        """
        runs, began = self.ledger.runs, self.hub.now
        longest = CALM_SECONDS + self.ledger.set_back
        waiting = {run.run_id: run.job_id for run in runs.values() if not run.is_gap}
        since = dict.fromkeys(waiting.values(), began)
        while self._wants_more():
            self.hub.run(self.hub.now + 10.0, self._wants_more)
            still = {run_id: job_id for run_id, job_id in waiting.items() if self._waits(run_id)}
            since |= {waiting[run_id]: self.hub.now for run_id in waiting.keys() - still.keys()}
            waiting = still
            if not waiting and self.hub.now > began + 2 * _LATE_SECONDS:
                break
            for run_id in sorted(waiting) if self._wants_more() else ():
                run = runs[run_id]
                if self.hub.now - since[run.job_id] > longest:
                    slot = f"{run.job_name} {run.scheduled_for} attempt {run.attempt}"
                    self.ledger.fail("liveness", f"{slot} is still {run.state}", run.job_id)
        if self._wants_more():
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
        return latest.state not in FINAL and not self._was_unlocked(job, latest)

    def _was_unlocked(self, job: JobRow, run: RunRow) -> bool:
        """Whether an operator took the job from an extra slot.

        That one goes on once the job is due.
        """
        is_taken = job.id in self.ledger.unlocked and job.locked_by is None and job.run_id == run.run_id
        is_due = job.next_run_time is not None and instant(job.next_run_time) <= self.server.clock()
        return is_taken and not run.advances and job.retry_at is None and not is_due

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

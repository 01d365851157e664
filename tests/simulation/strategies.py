"""Tasks with a strategy of their own, on one worker.

It takes their messages over, and nobody hears how they end.
"""

from typing import TYPE_CHECKING

from celery_sqlbeat.model import StartRequest
from celery_sqlbeat.worker.lease import RunLease, StartAnswer, Started, StoreUnavailable
from celery_sqlbeat.worker.lease.starts import StartQuestion
from celery_sqlbeat.worker.results import TaskResult, backoff_of, outcome_of
from tests.simulation.broker import Message
from tests.simulation.jobs import STRATEGY_TASK
from tests.simulation.ledger import Body

if TYPE_CHECKING:
    from tests.simulation.workers import Worker


class Strategies:
    """What strategies have in their hands."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self._backoff = backoff_of(worker.world.settings)
        self._handed: dict[int, tuple[Body, RunLease]] = {}
        """By delivery."""
        self.unleasable: set[str] = set()
        """What the worker tells beats: tasks whose leases nobody can keep."""

    def receive(self, message: Message) -> None:
        """Begin the run on receipt, whatever its eta, and give it to the strategy."""
        worker = self._worker
        request = StartRequest(message.run, message.claim, message.fence, worker.ids.random_id(), message.retries)

        def heard(answer: StartAnswer) -> None:
            if isinstance(answer, Started) and answer.run_lease.take():
                self._take(message, answer.run_lease)
                return
            if isinstance(answer, StoreUnavailable):
                worker.world.broker.requeue(message.number, 1.0 + 4.0 * worker.rng.random())
            else:
                worker.world.broker.acknowledge(message.number)
            worker.released()

        def answered(answer: StartAnswer) -> None:
            worker.later(0.001 * worker.rng.random(), lambda: heard(answer))

        worker.lease_manager.ask(StartQuestion(request, answered))

    def _take(self, message: Message, run_lease: RunLease) -> None:
        worker, checks = self._worker, self._worker.world.witness.body_checks
        worker.world.ledger.did("begin")
        worker.received.begun(worker.header_of(message))
        body = checks.begins(worker, run_lease.run, message.retries)
        body.handed = True
        self._handed[message.number] = (body, run_lease)
        run_lease.on_stop(lambda: checks.told_to_stop(body, is_overdue=False))
        end, how = (TaskResult.LEFT, "left") if worker.rng.random() < 0.8 else (TaskResult.FAILURE, "failure")
        seconds = worker.rng.choice([0.05, 2.0, 2 * worker.world.settings.lock_timeout]) * worker.rng.random()
        worker.later(seconds, lambda: self._let_go(message.number, end, how))

    def _let_go(self, tag: int, end: TaskResult, how: str) -> None:
        """Let the strategy answer the broker, or never answer it."""
        found = self._handed.pop(tag, None)
        if found is None:
            return
        body, run_lease = found
        worker, world = self._worker, self._worker.world
        world.ledger.did("end")
        if end is TaskResult.LEFT:
            world.witness.copy_checks.left(body.run_id, body.job_id)
            self.unleasable.add(STRATEGY_TASK)
        world.witness.body_checks.ended(body, how)
        result = outcome_of(end, run_lease.run, self._backoff, worker.rng.random, how)
        worker.lease_manager.finish(run_lease, result, lambda _: world.broker.acknowledge(tag))
        worker.released()

    def stop(self) -> None:
        """Forget what a strategy has: the connection or the worker ends."""
        for tag in list(self._handed):
            self._let_go(tag, TaskResult.STOPPED, "stopped")

    def kill(self) -> None:
        """SIGKILL."""
        for body, _ in self._handed.values():
            self._worker.world.witness.body_checks.ended(body, "killed")
        self._handed.clear()

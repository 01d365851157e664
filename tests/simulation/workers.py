"""A worker as a process of a simulation.

The real keeper in three threads, and a pool that stands for Celery's.

The pool begins bodies, ends them in every way that Celery knows, and stops them when it is told so.
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from celery_sqlbeat.celery_bridge import inspect_workers
from celery_sqlbeat.celery_bridge.message_header import Header
from celery_sqlbeat.config.settings import stop_timeout
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model import Node, StartedRun, StartRequest, nodes
from celery_sqlbeat.model.lifecycle import Ending, after_failure
from celery_sqlbeat.store.records import Extended
from celery_sqlbeat.store.sql.store import SqlStore
from celery_sqlbeat.worker.lease import RunLease, StartAnswer, Started, Stop, StoreUnavailable
from celery_sqlbeat.worker.lease.batching import Timing
from celery_sqlbeat.worker.lease.heartbeats import WaitingRuns
from celery_sqlbeat.worker.lease.manager import BEAT, SERVE, WATCH, LeaseManager
from celery_sqlbeat.worker.lease.starts import StartQuestion
from celery_sqlbeat.worker.membership import WorkerMembership
from celery_sqlbeat.worker.results import TaskResult, backoff_of, outcome_of
from tests.simulation.beats import Host
from tests.simulation.broker import QUEUE, Message
from tests.simulation.hub import Event
from tests.simulation.ledger import Body
from tests.simulation.strategies import Strategies

if TYPE_CHECKING:
    from greenlet import greenlet

    from tests.simulation.world import World

_MOST_CELERY_RETRIES = 2
_LONGEST_SLEEP = 60.0  # seconds
_DRAIN_SECONDS = 20.0
_FOR_EVER = 1e6  # seconds
_SLACK = 1.0  # seconds
_ENDS = [TaskResult.FAILURE, TaskResult.FAILURE, TaskResult.CHILD_LOST, TaskResult.TIME_LIMIT]


class Task:
    """A body in the pool."""

    def __init__(self, body: Body, run_lease: RunLease, message: Message, end: Event, began: float) -> None:
        self.body, self.run_lease, self.message, self.end, self.began = body, run_lease, message, end, began


class _Unacknowledged:
    """A message as the worker has it from the broker."""

    def __init__(self, world: "World", message: Message) -> None:
        self._world, self._number = world, message.number

    @property
    def acknowledged(self) -> bool:
        """Whether nothing of it is left here; so it is, too, where its connection was lost."""
        return self._number not in self._world.broker.unacknowledged


class _Noted(SqlStore):
    """The store of the heartbeats.

    Notes when the keeper asks, which is before the tries that fail.
    """

    def __init__(self, worker: "Worker", store: SqlStore) -> None:
        super().__init__(store.database, store.namespace)
        self._worker = worker

    def extend(self, held: Sequence[tuple[StartedRun, float]]) -> Extended:
        self._worker.heartbeat_at = self._worker.hub.now
        return super().extend(held)


class Worker(Host):
    """One worker process with its pool."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self._slots = self._size = 1 + int(3 * self.rng.random())
        self._late = self.rng.random() < 0.6
        self._waiting: list[Message] = []
        self._asks_ahead = self.rng.random() < 0.4
        self._asked: dict[int, StartQuestion] = {}
        self._leased: list[tuple[Message, StartAnswer]] = []
        """What was asked ahead, and waits for a slot of the pool."""
        self._taken = 0
        self._tasks_by_tag: dict[int, Task] = {}
        self._backoff = backoff_of(world.settings)
        self._drains = False
        self._took_at = 0.0
        self._tells_address = self.rng.random() < world.tells_address
        self.is_named = self.rng.random() < world.names_connections
        self.heartbeat_at = -1.0
        store = SqlStore(self.database(), world.namespace)
        heartbeats = SqlStore(self.database(), world.namespace)
        membership = WorkerMembership(
            heartbeats, self._describe, world.settings.heartbeat_interval, self.clock, self.rng.random
        )
        timing = Timing.of(world.settings)
        self._tokens = 4.0 * world.settings.lock_timeout * self.rng.random() if self.rng.random() < 0.2 else 0.0
        """Seconds that a message may wait here for a token of its rate limit."""
        self.received = WaitingRuns(timing, self.clock)
        self._strategies = Strategies(self)
        self.lease_manager = LeaseManager(
            store,
            name,
            timing,
            self.clock,
            self._ring,
            _Noted(self, heartbeats),
            membership,
            received=self.received,
            rnd=self.rng.random,
            failed=self._overdue,
        )
        self.received.check_soon = self.lease_manager.check_soon
        self._rung = {SERVE: False, BEAT: False, WATCH: False}
        self._threads: dict[str, greenlet] = {}
        for step_name, step in (
            (SERVE, self.lease_manager.serve),
            (BEAT, self.lease_manager.beat),
            (WATCH, self.lease_manager.watch),
        ):
            self._threads[step_name] = self.start(self._loop(step_name, step))
        world.broker.consumers.append(self)

    def _overdue(self, run_lease: RunLease, reason: str) -> Ending:
        run = run_lease.run
        failed = after_failure(run.failures, run.max_retries, self._backoff, self.rng.random, reason)
        return failed._replace(reason=reason)

    def _describe(self) -> Node:
        address = self.address if self._tells_address else None
        queues = [] if self._drains else [QUEUE]
        told = nodes.tell_details(self._strategies.unleasable, address=address, is_named=self.is_named)
        return Node(self.name, "worker", "host", 1, "0", queues=json.dumps(queues), details=told)

    def _ring(self, step: str) -> None:
        self._rung[step] = True
        self.wake(self._threads[step])

    def _loop(self, name: str, step: Callable[[], float]) -> Callable[[], None]:
        def run() -> None:
            while True:
                self._rung[name] = False
                try:
                    seconds = step()
                except Exception as error:
                    self.world.unexpected(self, error)
                    seconds = 1.0
                if not self._rung[name]:
                    self.sleep(min(seconds, _LONGEST_SLEEP))

        return run

    # What the broker sees

    @property
    def address(self) -> str:
        """Of its connection."""
        return f"{self.name}:1"

    def consumes_from(self, queue: str) -> bool:
        """Whether the broker counts it among the consumers of a queue."""
        return queue == QUEUE and not self._drains

    def has_room(self) -> bool:
        """Whether it waits for a message."""
        return not self._drains and self._taken < 2 * self._size

    def idle_seconds(self) -> float:
        """Since it took its last message, where it does not wait for another one."""
        return 0.0 if self.has_room() else self.hub.now - self._took_at

    def takes(self, queue: str) -> bool:
        """Whether it is connected and has room."""
        return self.alive and queue == QUEUE and self.has_room() and self.hub.now >= self.stopped_until

    def answer(self) -> inspect_workers.Answer | None:
        """Return what it says where all workers are asked."""
        if self._drains or self.hub.now < self.stopped_until:
            return None
        return inspect_workers.Answer(self.name, frozenset({QUEUE}), {"node": self.name, nodes.NAMED: self.is_named})

    def disconnected(self) -> None:
        """Its connection is lost, and with it what a strategy has in its hands."""
        self._strategies.stop()

    def receive(self, message: Message) -> None:
        """Take a message; one with an eta, or without a token of its rate limit, waits."""
        header = self.header_of(message)
        if not self.received.came(header, _Unacknowledged(self.world, message)):
            self.world.broker.acknowledge(message.number)
            return
        self._taken += 1
        self._took_at = self.hub.now
        if self.world.ledger.spec_of_run[message.run].own_strategy:
            self._strategies.receive(message)
            return
        expires = None if message.life_seconds is None else self.hub.now + message.life_seconds
        wait = 0.0 if message.eta is None else message.eta - self.hub.now
        if expires is not None and self.hub.now >= expires:
            self._done(message)
        elif (wait := wait + self._tokens * self.rng.random()) > 0:
            self.later(wait, lambda: self._enter(message))
        else:
            self._enter(message)

    def _enter(self, message: Message) -> None:
        if self._asks_ahead and self._slots <= 0 and not self._drains:
            self._ask(message, ahead=True)
        else:
            self._waiting.append(message)
            self._next()

    def _next(self) -> None:
        while self._slots > 0 and not self._drains:
            if self._leased:
                self._slots -= 1
                self._take(*self._leased.pop(0))
            elif self._waiting:
                self._slots -= 1
                self._ask(self._waiting.pop(0))
            else:
                break

    def _ask(self, message: Message, ahead: bool = False) -> None:
        request = StartRequest(message.run, message.claim, message.fence, self.ids.random_id(), message.retries)
        question = self._asked[message.number] = StartQuestion(request, self._answered(message, ahead), ahead)
        self.lease_manager.ask(question)

    def _answered(self, message: Message, ahead: bool) -> Callable[[StartAnswer], None]:
        answers: list[StartAnswer] = []

        def answered(answer: StartAnswer) -> None:
            if answers:
                self.world.ledger.fail("G3", f"{self.name} got two answers for one message of {message.job_name}")
            answers.append(answer)
            self.later(0.001 * self.rng.random(), lambda: self._heard(message, answer, ahead))

        return answered

    def _heard(self, message: Message, answer: StartAnswer, ahead: bool) -> None:
        self._asked.pop(message.number, None)
        if not ahead:
            self._take(message, answer)
        elif self._drains and isinstance(answer, Started):
            self.lease_manager.unstart(answer.run_lease)
            self._done(message)
        elif isinstance(answer, Started):
            self._leased.append((message, answer))
            self._next()
        else:  # it needs no slot to be sent away
            self._slots -= 1
            self._take(message, answer)

    def _take(self, message: Message, answer: StartAnswer) -> None:
        if isinstance(answer, Started):
            if answer.run_lease.take():
                self._begin(message, answer.run_lease)
                return
            self.world.broker.acknowledge(message.number)
        elif isinstance(answer, StoreUnavailable):
            self.world.broker.requeue(message.number, 1.0 + 4.0 * self.rng.random())
        else:
            self.world.witness.body_checks.dropped(self, message)
            self.world.broker.acknowledge(message.number)
        self._leave(message)

    def _done(self, message: Message) -> None:
        self.world.broker.acknowledge(message.number)
        self._taken -= 1
        self.later(0.0, self.world.broker.hand_out)

    def _leave(self, message: Message) -> None:
        self._slots += 1
        self._taken -= 1
        self._next()
        self.later(0.0, self.world.broker.hand_out)

    @staticmethod
    def header_of(message: Message) -> Header:
        """Return what the worker reads of it."""
        return Header(message.store, message.namespace, message.run, message.claim, message.fence, message.retries)

    def released(self) -> None:
        """There is room for one message more."""
        self._taken -= 1
        self.later(0.0, self.world.broker.hand_out)

    # The pool

    def _begin(self, message: Message, run_lease: RunLease) -> None:
        world, rng = self.world, self.rng
        world.ledger.did("begin")
        self.received.begun(self.header_of(message))
        body = world.witness.body_checks.begins(self, run_lease.run, message.retries)
        spec = world.ledger.spec_of_run[run_lease.run.run_id]
        # In the end nobody is to wait for a pool that has too much to do.
        longest = min(spec.longest, 2 * spec.shortest) if world.is_calm else spec.longest
        seconds = (spec.shortest + (longest - spec.shortest) * rng.random()) * (0.05 if world.is_calm else 1.0)
        if rng.random() < spec.hangs:
            seconds = _FOR_EVER
        task = Task(body, run_lease, message, self.later(seconds, lambda: self._ends_by_itself(task)), self.hub.now)
        self._tasks_by_tag[message.number] = task
        if not self._late:
            world.broker.acknowledge(message.number)
        run_lease.on_stop(lambda: self._must_stop(task))

    def _must_stop(self, task: Task) -> None:
        """From the keeper's thread: set the stop in motion.

        The task takes a while, and may end by itself meanwhile.
        """
        self.world.witness.body_checks.told_to_stop(task.body, task.run_lease.stop is Stop.OVERDUE)
        longest = 0.8 * stop_timeout(task.run_lease.run.lease_seconds)
        self.later(longest * self.rng.random(), lambda: self._is_gone(task))

    def _is_gone(self, task: Task) -> None:
        if self._end(task, "stopped"):
            self.lease_manager.finish(
                task.run_lease, outcome_of(TaskResult.REVOKED, task.run_lease.run, self._backoff, self.rng.random)
            )
            self.world.broker.acknowledge(task.message.number)

    def _end(self, task: Task, how: str) -> bool:
        """End the body; return False if it was over before."""
        if self._tasks_by_tag.pop(task.message.number, None) is None:
            return False
        task.end.action = None
        if task.run_lease.stop is Stop.OVERDUE and how != "success":
            how = "failure"  # whatever its pool reports
        self.world.ledger.did("end")
        self.world.witness.body_checks.ended(task.body, how)
        self._is_in_time(task)
        self._leave(task.message)
        return True

    def _is_in_time(self, task: Task) -> None:
        run, taken = task.run_lease.run, self.hub.now - task.began
        if run.max_runtime is None or self.stopped_until > task.began:  # a worker that stood still stops nothing
            return
        if taken > run.max_runtime + stop_timeout(run.lease_seconds) + _SLACK:
            self.world.ledger.fail(
                "max_runtime", f"a body of {run.job_name} took {taken:.1f} s of {run.max_runtime:g} s"
            )

    def _ends_by_itself(self, task: Task) -> None:
        world = self.world
        spec = world.ledger.spec_of_run[task.run_lease.run.run_id]
        chance = self.rng.random()
        if chance < spec.retries and task.message.retries < _MOST_CELERY_RETRIES:
            self._retry(task)
            return
        failed = chance < spec.retries + spec.fails
        end = _ENDS[int(self.rng.random() * len(_ENDS))] if failed else TaskResult.SUCCESS
        if not failed and self.rng.random() < spec.unstored:
            world.ledger.did("unstored result")
            end = TaskResult.UNSTORED
        self._finish(task, end, "failure" if failed else "success")

    def _finish(self, task: Task, end: TaskResult, how: str) -> None:
        if self._end(task, how):
            result = outcome_of(end, task.run_lease.run, self._backoff, self.rng.random, how)
            self.lease_manager.finish(
                task.run_lease, result, lambda _: self.world.broker.acknowledge(task.message.number)
            )

    def _retry(self, task: Task) -> None:
        """self.retry(): its message is on the way before this try is known to have ended."""
        broker, old = self.world.broker, task.message
        seconds = 4.0 * self.rng.random()
        if broker.is_unavailable():
            self._finish(task, TaskResult.FAILURE, "failure")
            return
        again = old._replace(number=broker.number(), retries=old.retries + 1, eta=self.hub.now + seconds)
        broker.put(again)
        self.world.witness.published(self, again)
        if self._end(task, "retry"):
            self.lease_manager.retrying(task.run_lease, seconds, lambda _: broker.acknowledge(old.number))

    # Ends of the process

    def kill(self) -> None:
        """SIGKILL: its children die with it, and the broker hands its messages to others."""
        if self.alive:
            for task in list(self._tasks_by_tag.values()):
                self.world.witness.body_checks.ended(task.body, "killed")
            self._strategies.kill()
            self._tasks_by_tag.clear()
            self.world.broker.consumers.remove(self)
            self.hub.after(0.01, lambda: self.world.broker.lose(self))
        super().kill()

    def ask_to_end(self) -> None:
        """SIGTERM: begin nothing more, let the bodies end, and after a while take them along."""
        if not self._drains:
            self._drains = True
            self.start(self._drain)

    def _drain(self) -> None:
        self.lease_manager.close()
        for message in self._waiting:
            self.world.broker.requeue(message.number)
        self._waiting.clear()
        for _, begun in self._leased:
            assert isinstance(begun, Started)
            self.lease_manager.unstart(begun.run_lease)
        self._leased.clear()
        for question in self._asked.values():
            if self.rng.random() < 0.5:
                self.lease_manager.withdraw(question)
        deadline = self.hub.now + _DRAIN_SECONDS
        while self._tasks_by_tag or not self.lease_manager.is_idle:
            self.sleep(0.25)
            if not self._tasks_by_tag:
                self.disconnected()
            if self.hub.now > deadline:
                for task in list(self._tasks_by_tag.values()):
                    self._finish(task, TaskResult.STOPPED, "stopped")
                self.disconnected()
                if self.hub.now > deadline + _DRAIN_SECONDS:
                    break  # the database is away
        with contextlib.suppress(StoreError):  # it is seen by its heartbeat, which is missing
            self.lease_manager.leave()
        self.kill()

"""The extension of one worker: between Celery's consumer and its pool, from connection to end."""

import atexit
import os
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

import celery_sqlbeat
from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.app import fingerprint
from celery_sqlbeat.celery_bridge.consumer import consumed_queues, hide_arguments, take_requests
from celery_sqlbeat.celery_bridge.event_loop import Loop, PipedLoop, acknowledge_at_the_end, ask_without_waiting
from celery_sqlbeat.celery_bridge.message_header import HEADER, Header, Malformed, Newer, header_of
from celery_sqlbeat.celery_bridge.pools import follow_end
from celery_sqlbeat.celery_bridge.redis import ConnectionName, address_of, free_places_of_lost_messages
from celery_sqlbeat.celery_bridge.self_test import prove
from celery_sqlbeat.celery_bridge.tasks import SlotResults
from celery_sqlbeat.config.settings import NAMES, Settings
from celery_sqlbeat.model import Node, nodes
from celery_sqlbeat.model.nodes import tell_tasks
from celery_sqlbeat.worker.admission import Admission, PendingMessage
from celery_sqlbeat.worker.capacity import Pool, loop_for, pool_for
from celery_sqlbeat.worker.lease.batching import Timing
from celery_sqlbeat.worker.lease.heartbeats import WaitingRuns
from celery_sqlbeat.worker.membership import Consumption
from celery_sqlbeat.worker.receipt import StrategyHook, ask_before_refusing
from celery_sqlbeat.worker.results import TaskResult
from celery_sqlbeat.worker.runtime import WorkerRuntime
from celery_sqlbeat.worker.task import flags
from celery_sqlbeat.worker.task.body import watch_bodies_of
from celery_sqlbeat.worker.task.own_strategy import strategy_message_of
from celery_sqlbeat.worker.task.tracking import TrackedRequest

_PENDING = "sqlbeat_pending"  # on a request that waits for capacity


class Parts(NamedTuple):
    """What depends on the pool and the connection of the worker."""

    loop: Loop
    admission: Admission
    pool: Pool
    receipt: StrategyHook


class Extension:
    """What a worker has of ours; made before its pool, so that children share the flags."""

    def __init__(self, worker: Any, settings: Settings) -> None:
        self._worker = worker
        self._flags = flags.share()
        self._executions: set[TrackedRequest] = set()
        self._parts: Parts | None = None
        self._strategies: Mapping[str, Any] | None = None
        self._names: tuple[str, ...] = ()
        self._tasks: str | None = None
        self._queues: Any = None
        """The app's queues: a thread that asks for them locks what a child may inherit."""
        self._consumer: Any = None
        """The consumer while it has a connection: without one it takes no messages."""
        host = socket.gethostname()
        # The random part makes a restarted worker another one, even under the same process id.
        name = f"{worker.hostname}/{os.getpid()}/{environment.random_hex(4)}"
        self._node = Node(name, "worker", host, os.getpid(), celery_sqlbeat.__version__)
        self._consumption = Consumption(settings.worker_memory)
        database = NAMES[0]
        is_configured = database in worker.app.conf or bool(environment.variables().get(database.upper()))
        timing = Timing.of(settings)
        self._received = WaitingRuns(timing, environment.monotonic)
        self._connection_name = ConnectionName()
        self.worker_runtime = WorkerRuntime(settings, self._describe, is_configured, timing, self._received)
        watch_bodies_of(worker.app, worker.hostname)
        hide_arguments()
        self._wait_for_capacity, self._process = take_requests(worker, self._receive, self._admit)

    def connected(self, consumer: Any) -> None:
        """Take part in a new connection; the first time after the self-test of our hooks."""
        if self._parts is None:
            self._parts = self._assemble(consumer)
            ask_before_refusing(consumer, self._parts.admission, self._parts.loop)
        watch_bodies_of(self._worker.app, self._worker.hostname, is_traced=True)  # new tasks
        ask_without_waiting(consumer, self._parts.loop)
        free_places_of_lost_messages(consumer)
        self._connection_name.keep(consumer)
        self._parts.admission.connected(consumer)
        self._parts.receipt.connected(consumer)
        if self._strategies is None:  # before the worker registers
            prove(self._worker, consumer, self._receive, self._admit)
        self._strategies = consumer.strategies
        self._queues, self._consumer = self._worker.app.amqp.queues, consumer
        self.worker_runtime.open()
        self.worker_runtime.queues_changed()

    def join(self, hub: Any) -> None:
        """Join the event loop, which starts anew with each connection."""
        if self._parts is not None and isinstance(self._parts.loop, PipedLoop):
            self._parts.loop.join(hub)

    def disconnected(self, is_closing: bool) -> None:
        """Leave a connection that is lost, or ends with the worker; its pool is drained next."""
        if self._parts is None:
            return
        self._consumer = None
        self.worker_runtime.queues_changed()
        self._parts.admission.leave(is_closing)
        self._parts.receipt.leave(is_closing)
        self._parts.pool.capacity.leave(is_closing)
        for execution in list(self._executions):
            if is_closing:
                # From here on Celery's pool hands nothing to its children, and starts none anew.
                execution.release_unbegun()
            elif self._parts.pool.has_dropped(execution):
                execution.not_begun()
        if is_closing:
            self._parts.loop.run()  # nobody serves the loop while the pool drains

    def queues_changed(self) -> None:
        """Tell beats soon which queues the worker consumes now."""
        self.worker_runtime.queues_changed()

    def end_revoked(self, context: Any, expired: bool) -> None:
        """End the run of a message that Celery revoked before it came to admission."""
        if self._parts is not None and context.get(HEADER) is not None:
            self._parts.admission.end_revoked(context, expired)

    def close(self) -> None:
        """Close the runtime, unless tasks that could not be stopped run on under leases."""
        if not self._executions:
            self.worker_runtime.close()

    def info(self) -> dict[str, Any]:
        """Return what `inspect stats` shows of us."""
        lease_manager = self.worker_runtime.lease_manager
        return {
            "version": celery_sqlbeat.__version__,
            "store": self.worker_runtime.store_id,
            "namespace": self.worker_runtime.settings.namespace,
            "node": self._node.node_id,
            "runs": lease_manager.held if lease_manager is not None else 0,
            nodes.NAMED: self._connection_name.is_kept,
        }

    def _receive(self, req: Any) -> Any:
        """Take a message that could run, and that waits for capacity if there is none."""
        header = self._to_begin(req)
        if self._parts is not None and header is not None:
            pending = self._pending(req, header, self._parts)
            if pending is None:
                return None
            setattr(req, _PENDING, pending)
            self._parts.pool.capacity.foresee(pending)
        return self._wait_for_capacity(req)

    def _admit(self, req: Any) -> Any:
        """Take a message for which the pool has capacity."""
        pending = vars(req).pop(_PENDING, None)
        header = self._to_begin(req) if pending is None else None
        if self._parts is None or (pending is None and header is None):
            return self._process(req)
        if header is not None:
            pending = self._pending(req, header, self._parts)
        if pending is not None:
            self._parts.pool.capacity.admit(pending)
        else:
            self._parts.pool.capacity.release()
        return None

    def _to_begin(self, req: Any) -> Header | Malformed | Newer | None:
        """Return the header of a message that needs a lease; None where Celery runs it as it is.

        It does so where a strategy has ended the run here, and where the beat of another store has
        fired and forgotten it.
        """
        header = header_of(req)
        if header is None:
            return None
        handed = strategy_message_of(req.message)
        if handed is not None and handed.is_let_go:
            return None
        is_foreign = isinstance(header, Header) and header.forgotten and self.worker_runtime.is_for_anybody(header)
        return None if is_foreign else header

    def _pending(self, req: Any, header: Header | Malformed | Newer, parts: Parts) -> PendingMessage | None:
        """Return what asks for the lease of a message; None where it is dropped or returned."""
        loop, admission, pool, _ = parts
        try:
            if not isinstance(header, Header):
                admission.refuse_header(req, header)
                return None
            execution = TrackedRequest(
                req, header, self.worker_runtime, loop, self._flags, pool.stop, self._executions, pool.has_dropped
            )
            pending = PendingMessage(execution, header)
            return pending if admission.receive(pending) else None
        except Exception as error:
            events.fault_caught(doing="ask for the lease of a message, which goes back", error=error, subject=req.id)
            admission.return_message(req)
            return None

    def _assemble(self, consumer: Any) -> Parts:
        worker = self._worker
        loop = loop_for(worker, consumer)
        admission = Admission(self.worker_runtime, loop, self._received)
        pool = pool_for(worker, admission, self._process, loop)
        if not pool.has_processes:  # a child would inherit what a thread has locked of the backend
            self.worker_runtime.results = SlotResults(worker.app)
        self._node = self._node._replace(broker_fingerprint=fingerprint(worker.app.connection_for_read()))
        pool.keep_handed_over(self._executions)
        follow_end(worker.pool, self._drained, self._terminated)
        atexit.register(self._process_ends)
        return Parts(loop, admission, pool, StrategyHook(self.worker_runtime, admission, loop, self._received))

    def _drained(self) -> None:
        """Write the outcomes of an empty pool, and acknowledge what waited for them."""
        if self._parts is not None:
            self._parts.loop.run()
            for execution in list(self._executions):
                execution.release_unbegun()  # the worker ended without a connection
            self._parts.receipt.stop()
            self.worker_runtime.drain()
            self._parts.loop.run()
            acknowledge_at_the_end(self._worker.consumer)

    def _terminated(self) -> None:
        if self._parts is not None and self._parts.pool.has_processes:
            for execution in list(self._executions):
                execution.end(TaskResult.STOPPED)
        self._drained()

    def _process_ends(self) -> None:
        if os.getpid() != self._node.pid:
            return
        for execution in list(self._executions):  # nothing of it runs any more
            execution.end(TaskResult.STOPPED)
        if self._parts is not None:
            self._parts.receipt.stop()
        self.worker_runtime.close()

    def _describe(self) -> Node:
        consumed = consumed_queues(self._queues) if self._consumer is not None else []
        unleasable = self._parts.receipt.unleasable if self._parts is not None else []
        strangers = self._parts.receipt.strangers.told if self._parts is not None else []
        return self._node._replace(
            queues=self._consumption.tell(consumed),
            tasks=self._tasks_known(),
            details=nodes.tell_details(
                unleasable, strangers, address_of(self._consumer), self._connection_name.is_kept
            ),
        )

    def _tasks_known(self) -> str | None:
        """Return the tasks that this worker takes; None before it consumes."""
        if self._strategies is None:
            return None
        names = tuple(self._strategies)
        if names != self._names:
            self._names, self._tasks = names, tell_tasks(names)
        return self._tasks

"""The extension of one worker: between Celery's consumer and its pool, from its first connection to its end."""

import atexit
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import celery_sqlbeat
from celery_sqlbeat import details
from celery_sqlbeat.brokerage import fingerprint
from celery_sqlbeat.config import NAMES, Settings
from celery_sqlbeat.knowledge import tell
from celery_sqlbeat.model import Node
from celery_sqlbeat.worker import running
from celery_sqlbeat.worker.body import watch_bodies_of
from celery_sqlbeat.worker.connections import address_of
from celery_sqlbeat.worker.consumption import Consumption
from celery_sqlbeat.worker.copies import is_ours
from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.execution import Execution
from celery_sqlbeat.worker.flush import keep_what_children_have
from celery_sqlbeat.worker.gate import Asked, Gate
from celery_sqlbeat.worker.handed import handed_of
from celery_sqlbeat.worker.header import HEADER, Header, read
from celery_sqlbeat.worker.loops import Loop, PipedLoop
from celery_sqlbeat.worker.office import Office
from celery_sqlbeat.worker.pools import Pool, loop_for, pool_for
from celery_sqlbeat.worker.prefetch import ask_without_waiting
from celery_sqlbeat.worker.received import Received
from celery_sqlbeat.worker.reception import Reception
from celery_sqlbeat.worker.refusals import ask_before_refusing
from celery_sqlbeat.worker.secrecy import shown
from celery_sqlbeat.worker.slot_results import SlotResults
from celery_sqlbeat.worker.timing import Timing

logger = logging.getLogger(__name__)

_ASKED = "sqlbeat_asked"  # on a request that waits for its slot


class Parts(NamedTuple):
    """What depends on the pool and the connection of the worker."""

    loop: Loop
    gate: Gate
    pool: Pool
    reception: Reception


class Extension:
    """What a worker has of ours. Made before its pool, so that children see the memory that they share with it."""

    def __init__(self, worker: Any, settings: Settings) -> None:
        self._worker = worker
        self._marks = running.share()
        self._executions: set[Execution] = set()
        self._parts: Parts | None = None
        self._strategies: Mapping[str, Any] | None = None
        self._names: tuple[str, ...] = ()
        self._tasks: str | None = None
        self._consumer: Any = None
        """While it has a connection: else it takes no messages, and somebody else may."""
        host = socket.gethostname()
        # The random part makes it another worker after a restart, even under the same process id.
        name = f"{worker.hostname}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._node = Node(name, "worker", host, os.getpid(), celery_sqlbeat.__version__)
        self._consumption = Consumption(settings.worker_memory)
        database = NAMES[0]
        is_configured = database in worker.app.conf or bool(os.environ.get(database.upper()))
        timing = Timing.of(settings)
        self._received = Received(lambda lease: timing.interval(lease or settings.lock_timeout), time.monotonic)
        self.office = Office(settings, self._describe, is_configured, timing, self._received, SlotResults(worker.app))
        self._process: Callable[[Any], Any] = worker._process_task
        worker._process_task = self._admit
        watch_bodies_of(worker.app, worker.hostname)
        self._wait_for_slot: Callable[[Any], Any] = worker._process_task_sem
        worker._process_task_sem = self._receive

    def connected(self, consumer: Any) -> None:
        """The consumer consumes, for the first time or again."""
        if self._parts is None:
            self._parts = self._assemble(consumer)
            ask_before_refusing(consumer, self._parts.gate, self._parts.loop)
        watch_bodies_of(self._worker.app, self._worker.hostname, is_traced=True)  # tasks may have come since
        ask_without_waiting(consumer, self._parts.loop)
        self._parts.gate.connected(consumer)
        self._parts.reception.connected(consumer)
        self._strategies = consumer.strategies
        self._consumer = consumer
        self.office.open()
        self.office.queues_changed()

    def join(self, hub: Any) -> None:
        """The event loop starts, for the first time or again."""
        if self._parts is not None and isinstance(self._parts.loop, PipedLoop):
            self._parts.loop.join(hub)
            if self._parts.pool.has_processes:
                self.office.join(self._parts.loop)

    def disconnected(self, is_closing: bool) -> None:
        """The connection is lost, or the worker ends; before its pool is drained."""
        if self._parts is None:
            return
        self._consumer = None
        self.office.queues_changed()
        self.office.leave()
        self._parts.gate.leave(is_closing)
        self._parts.reception.leave(is_closing)
        self._parts.pool.slots.leave(is_closing)
        for execution in list(self._executions):
            if is_closing:
                # Celery's pool hands nothing to its children from here on, and starts none for those that retire.
                execution.give_back_unbegun()
            elif self._parts.pool.has_dropped(execution):
                execution.not_begun()
        if is_closing:
            self._parts.loop.run()  # what was answered meanwhile, and nobody serves the loop while the pool drains

    def queues_changed(self) -> None:
        """The worker consumes another queue, or one less."""
        self.office.queues_changed()

    def bury(self, context: Any, expired: bool) -> None:
        """A message of ours was revoked or expired before it came to a slot."""
        if self._parts is not None and context.get(HEADER) is not None:
            self._parts.gate.bury(context, expired)

    def close(self) -> None:
        """The worker has ended; tasks that the pool could not stop go on under their leases, until the process ends."""
        if not self._executions:
            self.office.close()

    def info(self) -> dict[str, Any]:
        """What `inspect stats` shows of us."""
        keeper = self.office.keeper
        return {
            "version": celery_sqlbeat.__version__,
            "store": self.office.store_id,
            "namespace": self.office.settings.namespace,
            "node": self._node.node_id,
            "runs": keeper.held if keeper is not None else 0,
        }

    def _receive(self, req: Any) -> Any:
        """A message could run, and waits for its slot if there is none."""
        if self._parts is not None and self._takes(req):
            asked = self._asked(req, self._parts)
            if asked is None:
                return None
            setattr(req, _ASKED, asked)
            self._parts.pool.slots.foresee(asked)
        return self._wait_for_slot(req)

    def _admit(self, req: Any) -> Any:
        """A message has its slot."""
        asked = vars(req).pop(_ASKED, None)
        if self._parts is None or (asked is None and not self._takes(req)):
            return self._process(req)
        slots = self._parts.pool.slots
        asked = asked or self._asked(req, self._parts)
        if asked is not None:
            slots.admit(asked)
        else:
            slots.release()
        return None

    def _takes(self, req: Any) -> bool:
        """Whether a message must ask for its start. What another store's beat has fired and forgotten runs as it is."""
        if not _is_to_begin(req):
            return False
        header = read(shown(req.request_dict[HEADER]), req.request_dict)
        return not (isinstance(header, Header) and header.forgotten and self.office.is_for_anybody(header))

    def _asked(self, req: Any, parts: Parts) -> Asked | None:
        """What asks for the lease of a message; None where nothing can, which is seen to."""
        loop, gate, pool, _ = parts
        try:
            header = gate.header_of(req)
            if header is None:
                return None
            execution = Execution(req, header, self.office, loop, self._marks, pool.stop, self._executions)
            asked = Asked(execution, header)
            return asked if gate.receive(asked) else None
        except Exception:
            logger.exception("message %s (task %s) goes back to the broker", req.id, req.name)
            gate.give_back(req)
            return None

    def _assemble(self, consumer: Any) -> Parts:
        worker = self._worker
        loop = loop_for(worker, consumer)
        gate = Gate(self.office, loop, self._received)
        pool = pool_for(worker, gate, self._process, loop)
        self._node = self._node._replace(broker_fingerprint=fingerprint(worker.app.connection_for_read()))
        if pool.has_processes:
            keep_what_children_have(worker.pool, self._executions)
        worker.pool.stop = self._then(worker.pool.stop, self._drained)
        worker.pool.terminate = self._then(worker.pool.terminate, self._terminated)
        atexit.register(self._process_ends)
        return Parts(loop, gate, pool, Reception(self.office, gate, loop, self._received))

    def _then(self, first: Callable[[], Any], after: Callable[[], None]) -> Callable[[], Any]:
        def both() -> Any:
            try:
                return first()
            finally:
                after()

        return both

    def _drained(self) -> None:
        """The pool is empty: write the outcomes, and acknowledge what waited for them while there is a connection."""
        if self._parts is not None:
            self._parts.loop.run()
            for execution in list(self._executions):
                execution.give_back_unbegun()  # where the worker ended while it had no connection
            self._parts.reception.stop()
            self.office.settle()
            self._parts.loop.run()

    def _terminated(self) -> None:
        if self._parts is not None and self._parts.pool.has_processes:
            for execution in list(self._executions):
                execution.end(End.STOPPED)
        self._drained()

    def _process_ends(self) -> None:
        if os.getpid() != self._node.pid:
            return
        for execution in list(self._executions):  # nothing of it runs any more
            execution.end(End.STOPPED)
        if self._parts is not None:
            self._parts.reception.stop()
        self.office.close()

    def _describe(self) -> Node:
        consumed = list(self._worker.app.amqp.queues.consume_from.values()) if self._consumer is not None else []
        unleasable = self._parts.reception.unleasable if self._parts is not None else []
        strangers = self._parts.reception.strangers.told if self._parts is not None else []
        return self._node._replace(
            queues=self._consumption.tell(queue.name for queue in consumed),
            tasks=self._tasks_known(),
            details=details.tell(unleasable, strangers, address_of(self._consumer)),
        )

    def _tasks_known(self) -> str | None:
        """The tasks that this worker takes; None before it consumes."""
        if self._strategies is None:
            return None
        names = tuple(self._strategies)
        if names != self._names:
            self._names, self._tasks = names, tell(names)
        return self._tasks


def _is_to_begin(req: Any) -> bool:
    """Whether a message has a run that is to begin, and has not ended here already."""
    if not is_ours(req):
        return False
    handed = handed_of(req.message)
    return handed is None or not handed.is_let_go

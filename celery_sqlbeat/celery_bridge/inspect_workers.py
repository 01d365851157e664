"""Ask the broker and the workers who consumes a queue, and ask workers to check their leases.

The register in the database knows only workers with the extension. Questions block for seconds, so
they belong into a thread. A recall makes a worker ask the database at once instead of at its next
heartbeat; what is lost is decided there alone.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import amqp
from kombu.exceptions import OperationalError

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.message_header import HEADER
from celery_sqlbeat.celery_bridge.redis import KEEPS_LEASES

RECALL = "sqlbeat_recall"  # the remote control by which workers check their leases
STATS = "sqlbeat"  # the extension's key in `inspect stats`


class Answer(NamedTuple):
    """A worker that answered."""

    name: str
    queues: frozenset[str]
    extension: Mapping[str, Any] | None
    """The extension's own facts; None where the worker does not have it."""


def ask_workers(app: Any, seconds: float, connection: Any = None) -> list[Answer]:
    """Ask all workers, so many seconds for each question; raises the transport's errors."""
    inspect = app.control.inspect(timeout=seconds, connection=connection)
    queues = inspect.active_queues() or {}
    stats = inspect.stats() or {} if queues else {}
    return [
        Answer(name, frozenset(str(queue["name"]) for queue in consumed), stats[name].get(STATS))
        for name, consumed in sorted(queues.items())
        if name in stats
    ]


_CONNECT_SECONDS = 2.0


class RecallRequest:
    """Sends the remote control, in a thread and without waiting for an answer."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._is_sending = False

    def __call__(self, run_ids: Sequence[str]) -> None:
        """Ask all workers; never blocks, never raises."""
        with self._lock:
            self._waiting.update(run_ids)
            if self._is_sending:
                return
            self._is_sending = True
        threading.Thread(target=self._send_all, name="sqlbeat-recall", daemon=True).start()

    def _send_all(self) -> None:
        while True:
            with self._lock:
                run_ids, self._waiting = sorted(self._waiting), set()
                if not run_ids:
                    self._is_sending = False
                    return
            recall(self._app, run_ids)


def recall(app: Any, run_ids: Sequence[str]) -> None:
    """Ask all workers to look at these runs now, without waiting for answers; never raises.

    A worker that does not hear it looks at its next heartbeat.
    """
    try:
        # Not one of the app's pool, which beat's own thread uses.
        with app.connection_for_write(connect_timeout=_CONNECT_SECONDS) as connection:
            app.control.broadcast(RECALL, arguments={"runs": list(run_ids)}, connection=connection)
    except Exception as error:  # whatever the transport raises
        events.noted(topic="the workers were not asked to check their leases", text=error)


_MOST_READ = 100  # messages of a queue that are read to find one: more would take time and memory
_OUR_NAME = "sqlbeat-look"  # of connections to Redis that only ask, where kombu names them


class Client(NamedTuple):
    """A connection to Redis whose last command took messages from some queue."""

    address: str
    is_waiting: bool
    """Whether it waits for a message now; another may be busy with one."""
    idle_seconds: float
    """Since its last command or answer."""
    keeps_leases: bool = False
    """Whether it bears the name by which a worker with the extension takes messages."""


class QueueConsumers(NamedTuple):
    """What broker and workers say of one queue."""

    counted_at: float
    """By the monotonic clock, after the broker's answer."""
    roll: tuple[Answer, ...] | None
    """The workers that answered; None where nobody could be asked."""
    waiting: int | None = None
    """How many messages wait in the queue; None where the broker does not say."""
    consumers: int | None = None
    """How many consumers it has, by the broker's own count; None where the broker has none."""
    clients: tuple[Client, ...] | None = None
    """Who takes messages from any queue, where the broker counts no consumers of one."""

    waiting_runs: frozenset[str] | None = None
    """The runs whose messages wait in the queue, where the broker shows few messages."""

    def may_hold(self, run_id: str) -> bool:
        """Return whether the message of a run may wait for those that are there to take it."""
        waits = bool(self.waiting) if self.waiting_runs is None else run_id in self.waiting_runs
        return waits and bool(self.consumers or self.clients)

    @property
    def is_counted(self) -> bool:
        """Whether the broker leaves nobody out."""
        return self.consumers is not None or self.clients is not None


def ask_consumers(
    app: Any, queues: Iterable[str], seconds: float, clock: Callable[[], float] = environment.monotonic
) -> Mapping[str, QueueConsumers]:
    """Ask all workers, so long for each question, then the broker; raises what these raise."""
    with _connection(app) as connection:
        roll = _roll(app, seconds, connection)
    with _connection(app) as connection:  # another one: on Redis the one above looks like a worker
        counted = {queue: _count(connection, queue, QueueConsumers(0.0, roll)) for queue in queues}
        return {queue: consumers._replace(counted_at=clock()) for queue, consumers in counted.items()}


@contextmanager
def _connection(app: Any) -> Iterator[Any]:
    connection = app.connection_for_read(heartbeat=0)
    if connection.get_transport_cls().driver_type == "redis":
        connection.transport_options = {**connection.transport_options, "client_name": _OUR_NAME}
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=_CONNECT_SECONDS)
        yield connection
    finally:
        connection.release()


def _roll(app: Any, seconds: float, connection: Any) -> tuple[Answer, ...] | None:
    try:
        return tuple(ask_workers(app, seconds, connection))
    except Exception as error:  # not every broker can ask
        events.noted(topic="the workers cannot be asked what they consume", text=error)
        return None


def _count(connection: Any, queue: str, known: QueueConsumers) -> QueueConsumers:
    try:
        if isinstance(connection.connection, amqp.Connection):
            channel = connection.channel()  # the broker closes it where there is no such queue
            _, waiting, consumers = channel.queue_declare(queue=queue, passive=True)
            channel.close()
            return known._replace(waiting=waiting, consumers=consumers)
        if connection.transport.driver_type == "redis":
            channel = connection.default_channel
            runs = _waiting_runs(channel, queue)
            waiting = channel.queue_declare(queue=queue).message_count
            # Where nothing was read of what waits, it was looked for in the wrong place.
            known = known._replace(waiting=waiting, waiting_runs=runs if runs or not waiting else None)
            return known._replace(clients=_clients(channel))
    except (OperationalError, *connection.connection_errors):
        raise  # the broker went away: it may count as soon as it is back
    except Exception as error:  # a queue that is not there, a command that is not allowed
        events.noted(topic=f"the broker does not say who consumes queue {queue}", text=error)
    return known


def _waiting_runs(channel: Any, queue: str) -> frozenset[str] | None:
    """Return the runs whose messages lie in a queue of Redis; None where they cannot be read."""
    try:
        steps = [f"{channel.sep}{step}" if step else "" for step in channel.priority_steps]
        lists = [f"{channel.global_keyprefix}{queue}{step}" for step in steps]
        texts = [text for each in lists for text in channel.client.lrange(each, 0, _MOST_READ)]
        headers = [json.loads(text)["headers"] for text in texts[: _MOST_READ + 1]]
        runs = [str(header.get(HEADER, {}).get("run")) for header in headers]
    except (AttributeError, LookupError, TypeError, ValueError):  # another kombu, or no message of Celery's
        return None
    return frozenset(runs) if len(texts) <= _MOST_READ else None


def _clients(channel: Any) -> tuple[Client, ...]:
    client = channel.client
    database = str(client.connection_pool.connection_kwargs.get("db") or 0)
    return tuple(
        Client(
            str(row["addr"]),
            "b" in str(row.get("flags", "")),
            float(row.get("idle", 0)),
            row.get("name") == KEEPS_LEASES,
        )
        for row in client.client_list()
        if str(row.get("cmd", "")).lower() == "brpop"
        and str(row.get("db")) == database
        and row.get("name") != _OUR_NAME
    )

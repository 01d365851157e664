"""Redis: the commands that put messages into queues gather in a pipeline, and each has an answer of its own."""

import time
from contextlib import nullcontext
from typing import Any

from celery_sqlbeat.beat.outlets import TIME_UP, UNCERTAIN, Outlet, one_line


class RedisOutlet(Outlet):
    """Sends what has gathered in one exchange. The connection's socket time-out bounds it."""

    def __init__(self, connection: Any, producer: Any) -> None:
        super().__init__(connection, producer)
        self.reserve = connection.transport_options["socket_timeout"]
        self._client = producer.channel.client
        self._waiting = _Waiting(self, self._client)
        self._failures: dict[str, str] = {}
        producer.channel.conn_or_acquire = self._conn_or_acquire

    def _conn_or_acquire(self, client: Any = None) -> Any:
        return self._waiting if client is None else nullcontext(client)

    def flush(self) -> None:
        """Execute the pipeline. Where the answer is lost, each of its messages may or may not be in its queue."""
        owners, self._waiting.owners = self._waiting.owners, []
        if not owners:
            return
        if time.monotonic() >= self.until:
            self._waiting.gathered.reset()
            self._failures.update(dict.fromkeys(owners, TIME_UP))
            return
        try:
            answers = self._waiting.gathered.execute(raise_on_error=False)
        except Exception as error:
            self.broken = one_line(error)
            self._failures.update(dict.fromkeys(owners, f"{UNCERTAIN} ({self.broken})"))
            return
        for run_id, answer in zip(owners, answers, strict=True):
            if isinstance(answer, Exception):
                self._failures[run_id] = one_line(answer)

    def settle(self) -> dict[str, str]:
        """Execute the pipeline and name the runs whose commands failed."""
        self.flush()
        failures, self._failures = self._failures, {}
        return failures

    def probe(self, seconds: float) -> None:
        """Ask for an answer; the socket time-out bounds the wait."""
        self._client.ping()


class _Waiting:
    """A client whose writes to queues wait in a pipeline; whatever else kombu asks goes to Redis at once."""

    def __init__(self, outlet: RedisOutlet, client: Any) -> None:
        self.owners: list[str] = []
        self.gathered = client.pipeline(transaction=False)
        self._outlet, self._client = outlet, client

    def __enter__(self) -> "_Waiting":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def lpush(self, key: Any, value: Any) -> None:
        self.gathered.lpush(key, value)
        self.owners.append(self._outlet.run_id)

    def publish(self, topic: Any, payload: Any) -> None:
        self.gathered.publish(topic, payload)
        self.owners.append(self._outlet.run_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

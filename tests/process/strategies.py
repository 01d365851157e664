"""Tasks with a strategy of their own.

Their messages never come where others get their leases, or late, or twice.

One kind is real, celery-batches; the others are as hostile as one can be by mistake.
"""

from collections.abc import Callable
from typing import Any

from celery import Task, shared_task
from celery.worker.strategy import default
from celery_batches import Batches

from tests.process.worker_tasks import tell, witnessed

FLUSH_SECONDS = 8.0  # longer than a lease of the tests


def task(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a task of every app."""
    made: Callable[[Callable[..., Any]], Any] = shared_task(name=name, **options)
    return made


@task("own.batch", base=Batches, flush_every=1000, flush_interval=FLUSH_SECONDS)
def batch(requests: Any) -> None:
    """Write down each message of a batch."""
    for one in requests:
        tell(_Told(one), "start")


@task("own.small_batch", base=Batches, flush_every=2, flush_interval=1, acks_late=True)
def small_batch(requests: Any) -> None:
    """Note the same, in batches of two that are acknowledged late."""
    for one in requests:
        tell(_Told(one), "start")


class _Told:
    """What the witness wants to know of a message."""

    def __init__(self, one: Any) -> None:
        self.name = one.name
        self.request = _Facts(one.request_dict or {})


class _Facts(dict[str, Any]):
    @property
    def id(self) -> Any:
        return self["id"]

    @property
    def retries(self) -> Any:
        return self.get("retries", 0)


def strategy_of(how: str) -> Any:
    """Return a strategy that deals with its messages in this way."""

    def strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Any:
        pass_on = default(task, app, consumer, **options)

        def receive(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **more: Any) -> Any:
            if how == "passes on":
                return pass_on(message, body, ack, reject, callbacks, **more)
            if how == "passes on later":
                return consumer.timer.call_after(0.5, pass_on, (message, body, ack, reject, callbacks))
            if how == "passes on twice":
                pass_on(message, body, ack, reject, callbacks)
                return pass_on(message, body, ack, reject, callbacks)
            if how == "acknowledges and passes on":
                message.ack()
                return pass_on(message, body, lambda *_: None, lambda *_: None, callbacks)
            if how == "acknowledges":
                return message.ack()
            if how == "rejects":
                return message.reject()
            if how == "requeues":
                return message.requeue()
            if how == "fails":
                raise RuntimeError("no strategy today")
            return None  # keeps it for ever

        return receive

    return strategy


def _make(how: str) -> None:
    class Own(Task[Any, Any]):
        abstract = True

        def start_strategy(self, app: Any, consumer: Any, **options: Any) -> Any:
            return strategy_of(how)(self, app, consumer, **options)

    @task(f"own.{how}", base=Own, bind=True)
    def run(self: Any) -> None:
        with witnessed(self):
            pass


WAYS = (
    "passes on",
    "passes on later",
    "passes on twice",
    "acknowledges and passes on",
    "acknowledges",
    "rejects",
    "requeues",
    "fails",
    "keeps",
)
for _how in WAYS:
    _make(_how)

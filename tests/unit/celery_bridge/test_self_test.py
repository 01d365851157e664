"""A worker's proof of its hooks, on Celery's own objects.

What is in place passes, and each thing amiss is named.
"""

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import request, state, strategy
from celery.worker.consumer.consumer import Consumer

from celery_sqlbeat.celery_bridge.consumer import WatchedStrategies
from celery_sqlbeat.celery_bridge.self_test import HookMissing, prove


class Pool:
    """A pool of threads, as far as it is asked."""

    uses_semaphore = False
    is_green = False

    def apply_async(self, target: Any, **options: Any) -> None:
        """Nobody hands it anything."""


class Scene:
    """A consumer of Celery's without a connection, and a worker that is a set of attributes."""

    def __init__(self) -> None:
        app = Celery("shop", broker="memory://", set_as_current=False)
        app.finalize()
        pool = Pool()
        self.worker = SimpleNamespace(
            state=state,
            app=app,
            pool=pool,
            use_eventloop=False,
            _process_task=self.admit,
            _process_task_sem=self.receive,
        )
        made: Any = Consumer
        self.consumer = made(
            self.receive,
            pool=pool,
            app=app,
            timer=SimpleNamespace(call_at=print),
            controller=self.worker,
            hub=None,
            hostname="w@h",
        )
        self.consumer.strategies = WatchedStrategies({}, lambda _name, each: each)
        self.consumer.task_consumer = SimpleNamespace()
        self.consumer.qos = SimpleNamespace(increment_eventually=lambda n=1: None)
        self.consumer.event_dispatcher = None

    def receive(self, req: Any) -> None:
        """Receive a message."""

    def admit(self, req: Any) -> None:
        """Admit a message, which has its capacity."""

    def prove(self) -> None:
        prove(self.worker, self.consumer, self.receive, self.admit)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_hooks_that_are_in_place_are_proven_and_nothing_is_left_behind(scene: Scene) -> None:
    scene.prove()
    assert not scene.consumer.strategies
    assert not [name for name in vars(request.Request) if "sqlbeat" in name]


def no_strategies(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.consumer.strategies = {}


def other_strategies(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.consumer.create_task_handler = lambda: print


def other_requests(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.consumer.on_task_request = print


def no_process_task(scene: Scene, _: pytest.MonkeyPatch) -> None:
    scene.worker._process_task = print


def no_stock_strategy(_: Scene, patch: pytest.MonkeyPatch) -> None:
    def default(task: Any, app: Any, consumer: Any) -> Any:
        return print

    patch.setattr(strategy, "default", FunctionType(default.__code__, vars(strategy)))


def no_callback(_: Scene, patch: pytest.MonkeyPatch) -> None:
    def execute_using_pool(req: Any, pool: Any, **__: Any) -> Any:
        return pool.apply_async(print, args=("name", req.id, req.request_dict))

    patch.setattr(request.Request, "execute_using_pool", execute_using_pool)


def no_acknowledgement(_: Scene, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(request.Request, "acknowledge", lambda req: None)


def two_acknowledgements(_: Scene, patch: pytest.MonkeyPatch) -> None:
    def acknowledge(req: Any) -> None:
        req.acknowledged = True
        req.on_ack()

    patch.setattr(request.Request, "acknowledge", acknowledge)


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (no_strategies, "Consumer.strategies is not replaced"),
        (other_strategies, "does not look for the strategy"),
        (other_requests, "Celery gives its requests to <built-in function print>"),
        (no_process_task, "_process_task is not replaced"),
        (no_stock_strategy, "strategy is not known"),
        (no_callback, "gives the pool no accept_callback"),
        (no_acknowledgement, "says nothing to the broker"),
        (two_acknowledgements, "acknowledges twice"),
    ],
)
def test_each_thing_amiss_is_named(
    breaks: Callable[[Scene, pytest.MonkeyPatch], None], says: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(scene, monkeypatch)
    with pytest.raises(HookMissing, match="self-test of the worker: ") as raised:
        scene.prove()
    assert says in str(raised.value)

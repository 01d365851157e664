"""Whether a function is still Celery's own decides how a message is made."""

import functools
from collections.abc import Callable
from typing import Any

import celery.beat
import pytest
import wrapt
from celery import Celery, Task
from kombu.messaging import Producer

from celery_sqlbeat.beat.scheduler import Scheduler
from celery_sqlbeat.celery_bridge.call_check import is_stock_app, is_stock_scheduler, is_stock_task, is_unpatched
from tests.support.stock import untyped


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Proxy:
    """As the wrappers of tracing libraries: it looks like the function in every attribute."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def proxied(function: Any) -> Any:
    """As Datadog and New Relic do it.

    The proxy answers `__func__` and `__globals__` for the function behind it.
    """

    def wrapper(function: Any, instance: object, args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapt.FunctionWrapper(function, wrapper)


@pytest.fixture
def app() -> Celery:
    return Celery("shop", broker="memory://", set_as_current=False)


def unconnected(app: Celery) -> Producer:
    """Make a producer without a channel."""
    return app.amqp.Producer(untyped(None))


def test_celerys_own_functions_are_untouched(app: Celery) -> None:
    assert is_unpatched(Task, "apply_async", "shadow_name") and is_unpatched(app, "send_task")
    assert is_stock_app(app, unconnected(app))
    assert is_stock_scheduler(celery.beat.Scheduler(app, lazy=True).apply_entry)


@pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor:FutureWarning")
@pytest.mark.parametrize("wrap", [wrapped, Proxy, functools.partial, proxied])
def test_an_app_or_a_scheduler_that_somebody_wrapped_is_not_stock(
    app: Celery, monkeypatch: pytest.MonkeyPatch, wrap: Any
) -> None:
    monkeypatch.setattr(Celery, "send_task", wrap(Celery.send_task))
    assert not is_stock_app(app, unconnected(app))
    scheduler = celery.beat.Scheduler(app, lazy=True)
    monkeypatch.setattr(celery.beat.Scheduler, "apply_async", wrap(celery.beat.Scheduler.apply_async))
    assert not is_stock_scheduler(scheduler.apply_entry)


@pytest.mark.parametrize("wrap", [wrapped, proxied])
@pytest.mark.parametrize("name", ["apply_entry", "apply_async", "send_task"])
def test_a_wrapper_shows_in_the_base_of_a_scheduler(
    app: Celery, monkeypatch: pytest.MonkeyPatch, wrap: Any, name: str
) -> None:
    class Ours(celery.beat.Scheduler):
        apply_async = Scheduler.apply_async  # which calls that of its base

    scheduler = Ours(app, lazy=True)
    assert is_stock_scheduler(scheduler.apply_entry)
    monkeypatch.setattr(celery.beat.Scheduler, name, wrap(getattr(celery.beat.Scheduler, name)))
    assert not is_stock_scheduler(scheduler.apply_entry)


@pytest.mark.parametrize("wrap", [wrapped, proxied])
def test_a_wrapper_of_a_task_shows(app: Celery, monkeypatch: pytest.MonkeyPatch, wrap: Any) -> None:
    def nothing() -> None: ...

    app.task(shared=False, name="a")(nothing)
    app.finalize()
    assert is_stock_task(app, app.tasks["a"])
    monkeypatch.setattr(Task, "apply_async", wrap(Task.apply_async))
    assert not is_stock_task(app, app.tasks["a"])


@pytest.mark.parametrize("wrap", [wrapped, proxied])
def test_an_app_whose_producer_somebody_wrapped_is_not_stock(
    app: Celery, monkeypatch: pytest.MonkeyPatch, wrap: Any
) -> None:
    monkeypatch.setattr(Producer, "publish", wrap(Producer.publish))
    assert not is_stock_app(app, unconnected(app))


@pytest.mark.parametrize("wrap", [wrapped, proxied])
def test_who_wraps_the_tick_of_celerys_scheduler_sees_each_tick(
    app: Celery, monkeypatch: pytest.MonkeyPatch, wrap: Any
) -> None:
    seen: list[float] = []

    def watched(function: Any) -> Any:
        def tick(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = function(self, *args, **kwargs)
            seen.append(result)
            return result

        return tick

    scheduler = Scheduler(app, schedule={"a": {"task": "a", "schedule": 1}}, lazy=True)
    waits = iter([0.25, 0.5, 0.75])
    monkeypatch.setattr(scheduler, "_tick", lambda: next(waits))
    assert scheduler.tick() == 0.25 and seen == []
    monkeypatch.setattr(celery.beat.Scheduler, "tick", wrap(watched(celery.beat.Scheduler.tick)))
    assert [scheduler.tick(), scheduler.tick()] == [0.5, 0.75]
    assert len(seen) == 2


def test_a_task_with_something_of_its_own_shows(app: Celery) -> None:
    def nothing() -> None: ...

    class Own(Task[Any, Any]):
        def apply_async(self, *args: Any, **kwargs: Any) -> Any: ...

    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "own": {"base": Own},
        "shadowed": {"shadow_name": lambda *args: "x"},
        "limits": {"time_limit": 1, "soft_time_limit": 2},
    }
    make: Any = app.task
    tasks = {kind: make(shared=False, name=kind, **given)(nothing) for kind, given in options.items()}
    app.finalize()
    assert {kind: is_stock_task(app, app.tasks[kind]) for kind in tasks} == {
        "plain": True,
        "own": False,
        "shadowed": False,
        "limits": False,
    }
    assert is_stock_task(app, None)
    assert not is_stock_task(Celery("other", set_as_current=False), app.tasks["plain"])


def test_an_eager_app_runs_its_tasks_itself(app: Celery) -> None:
    app.conf.task_always_eager = True
    assert not is_stock_app(app, unconnected(app))

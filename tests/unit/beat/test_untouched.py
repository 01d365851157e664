"""Whether a function is still Celery's own decides how much of Celery is gone through for each message."""

import functools
from collections.abc import Callable
from typing import Any

import celery.beat
import pytest
from celery import Celery, Task

from celery_sqlbeat.beat.untouched import is_stock_app, is_stock_scheduler, is_stock_task, untouched


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


@pytest.fixture
def app() -> Celery:
    return Celery("shop", broker="memory://", set_as_current=False)


def test_celerys_own_functions_are_untouched(app: Celery) -> None:
    assert untouched(Task, "apply_async", "shadow_name") and untouched(app, "send_task")
    assert is_stock_app(app, app.amqp.Producer(None))
    assert is_stock_scheduler(celery.beat.Scheduler(app, lazy=True).apply_entry)


@pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor:FutureWarning")
@pytest.mark.parametrize("wrap", [wrapped, Proxy, functools.partial])
def test_a_wrapper_shows(app: Celery, monkeypatch: pytest.MonkeyPatch, wrap: Any) -> None:
    monkeypatch.setattr(Celery, "send_task", wrap(Celery.send_task))
    assert not is_stock_app(app, app.amqp.Producer(None))
    scheduler = celery.beat.Scheduler(app, lazy=True)
    monkeypatch.setattr(celery.beat.Scheduler, "apply_async", wrap(celery.beat.Scheduler.apply_async))
    assert not is_stock_scheduler(scheduler.apply_entry)


def test_a_task_with_something_of_its_own_shows(app: Celery) -> None:
    def nothing() -> None: ...

    class Own(Task):  # type: ignore[misc]  # Celery has no types
        def apply_async(self, *args: Any, **kwargs: Any) -> Any: ...

    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "own": {"base": Own},
        "shadowed": {"shadow_name": lambda *args: "x"},
        "limits": {"time_limit": 1, "soft_time_limit": 2},
    }
    tasks = {kind: app.task(shared=False, name=kind, **options)(nothing) for kind, options in kinds.items()}
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
    assert not is_stock_app(app, app.amqp.Producer(None))

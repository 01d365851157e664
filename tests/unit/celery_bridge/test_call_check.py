"""What could never be published is found in the call itself, and nothing else is taken for it."""

from typing import Any

import pytest
import wrapt
from celery import Celery, Task

from celery_sqlbeat.celery_bridge.call_check import check_call
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model.definition import Call


class Adds(Task[Any, Any]):
    """A task of a shop that gives each message its tenant."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]  # options come by name
        return super().apply_async((*(args or ()), "tenant"), kwargs, **options)


def pair(a: Any, b: Any) -> None: ...


def bound(self: Any, a: Any) -> None: ...


@pytest.fixture
def app() -> Celery:
    made = Celery("shop", broker="memory://", set_as_current=False)
    made.conf.task_create_missing_queues = False
    made.task(name="pair", shared=False)(pair)
    made.task(name="bound", shared=False, bind=True)(bound)
    made.task(name="untyped", shared=False, typing=False)(pair)
    made.task(name="adds", shared=False, base=Adds)(pair)
    made.task(name="packed", shared=False, compression="none such")(pair)
    return made


def snapshot(app: Celery, task: str, *args: Any, with_arguments: bool = True, **options: Any) -> None:
    check_call(app, Call(task, list(args), {}, options), with_arguments)


@pytest.mark.parametrize(
    ("task", "args"),
    [("pair", [1, 2]), ("bound", [1]), ("untyped", []), ("adds", [1]), ("nobody.has", [1, 2, 3])],
)
def test_what_can_be_published_passes(app: Celery, task: str, args: list[Any]) -> None:
    snapshot(app, task, *args)


def test_arguments_that_only_the_code_knows_are_not_judged(app: Celery) -> None:
    snapshot(app, "pair", with_arguments=False)


def test_a_tool_that_wraps_apply_async_hides_nothing(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = wrapt.FunctionWrapper(Task.apply_async, lambda function, _, args, kwargs: function(*args, **kwargs))
    monkeypatch.setattr(Task, "apply_async", wrapped)
    with pytest.raises(FieldError, match="Args"):
        snapshot(app, "pair", 1)


@pytest.mark.parametrize(
    ("task", "args", "options", "field"),
    [
        ("pair", [1], {}, "Args"),
        ("bound", [1, 2], {}, "Args"),
        ("pair", [1, 2], {"queue": "none such"}, "Options.queue"),
        ("pair", [1, 2], {"serializer": "none such"}, "Options.serializer"),
        ("packed", [1, 2], {}, "TaskName"),
        ("pair", [{1}, 2], {}, "Args"),
    ],
)
def test_what_cannot_be_published_names_its_field_and_a_remedy(
    app: Celery, task: str, args: list[Any], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(FieldError) as refusal:
        snapshot(app, task, *args, **options)
    assert refusal.value.field == field and refusal.value.remedy


def test_a_router_that_raises_or_names_no_queue_is_told_of(app: Celery) -> None:
    app.conf.task_routes = {"pair": {"queue": "none such"}}
    with pytest.raises(FieldError, match="TaskName = 'pair': it is routed to a queue that is not there"):
        snapshot(app, "pair", 1, 2)

    def route(*_: Any, **__: Any) -> Any:
        raise LookupError("no tenant")

    app.conf.task_routes = (route,)
    app.amqp.__dict__.pop("router", None)
    vars(app.amqp)["_rtable"] = None
    with pytest.raises(FieldError, match="LookupError: no tenant"):
        snapshot(app, "pair", 1, 2)

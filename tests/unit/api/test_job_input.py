"""A signature in the place of a task keeps what it says.

What is said twice is refused by its field.
"""

import json
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_sqlbeat.api.job_input import job_spec
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model.definition import Rules

RULES = Rules(Policies(), "UTC", 120.0, 3)
app = Celery("shop", broker="memory://", set_as_current=False)


@app.task(name="shop.add", shared=False)
def add(*args: Any, **kwargs: Any) -> None: ...


def wanted(task: Any, **more: Any) -> tuple[Any, Any, Any, Any]:
    """Return what is sent for it."""
    call = job_spec(RULES, "a", task, 60, **more).definition.call
    return call.task_name, list(call.args), dict(call.kwargs), dict(call.options)


def as_stock(signature: Any) -> tuple[Any, Any, Any, Any]:
    """Return what stock beat sends for it, by way of add_periodic_task, once it is JSON."""
    stock: Any = app  # the way is private
    _, entry = stock._sig_to_periodic_task_entry(60, signature)
    args, kwargs, options = json.loads(json.dumps([entry["args"], entry["kwargs"], entry["options"]]))
    return entry["task"], args, kwargs, options


SIGNATURES = {
    "arguments": add.s(1, 2),
    "names": add.s(x=1),
    "nothing": add.s(),
    "options": add.s(1, 2).set(queue="q2", countdown=3),
    "immutable": add.si(1).set(priority=3),
    "a link": add.s(1).set(link=add.s(2).set(queue="q3")),
    "a signature as an argument": add.s(add.s(1, 2), each=[add.si(3)]),
    "a chord": chord([add.s(1), add.s(2)], add.s()),
    "a map": add.map([1, 2]),
    "chunks": add.chunks([(1,), (2,)], 1),
}


@pytest.mark.parametrize("signature", SIGNATURES.values(), ids=SIGNATURES)
def test_a_signature_is_sent_as_stock_beat_sends_it(signature: Any) -> None:
    assert wanted(signature) == as_stock(signature)


@pytest.mark.parametrize("canvas", [chain(add.s(1), add.s()), group(add.s(1), add.s(2)), add.s(1) | add.s(2)])
def test_what_no_worker_can_run_as_a_task_is_refused(canvas: Any) -> None:
    with pytest.raises(FieldError, match=r"TaskName = .*a task that starts it"):
        wanted(canvas)


def test_what_is_said_beside_a_signature_is_added_to_it() -> None:
    signature = add.s().set(queue="q2")
    found = wanted(signature, args=[1], kwargs={"x": 2}, options={"priority": 3, "queue": "q2"})
    assert found == ("shop.add", [1], {"x": 2}, {"queue": "q2", "priority": 3})
    assert wanted(add.s(1), args=(), kwargs={}) == ("shop.add", [1], {}, {})


@pytest.mark.parametrize(
    ("signature", "field", "more"),
    [
        (add.s(1), "Args", {"args": [2]}),
        (add.s(x=1), "Kwargs", {"kwargs": {"y": 2}}),
        (add.si(), "Args", {"args": [2]}),
        (add.si(), "Kwargs", {"kwargs": {"y": 2}}),
        (add.s().set(queue="q2"), "Options.queue", {"options": {"queue": "q3"}}),
    ],
)
def test_what_is_said_twice_is_refused_by_its_field(signature: Any, field: str, more: dict[str, Any]) -> None:
    with pytest.raises(FieldError) as refusal:
        wanted(signature, **more)
    assert refusal.value.field == field


def test_a_task_and_its_name_are_as_ever() -> None:
    assert wanted(add, args=[1]) == wanted("shop.add", args=[1]) == ("shop.add", [1], {}, {})


def test_arguments_that_no_text_holds_are_refused() -> None:
    with pytest.raises(FieldError, match="Args"):
        wanted(add.s(object()))

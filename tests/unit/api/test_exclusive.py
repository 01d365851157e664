"""Tasks that hold a lock for as long as their body takes."""

import secrets
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Retry

import celery_sqlbeat
from celery_sqlbeat import events
from celery_sqlbeat.api import Handle, exclusive
from celery_sqlbeat.errors import FieldError, LockNotAcquired
from celery_sqlbeat.store.keyvalue.memory import memory_store


@pytest.fixture
def app() -> Any:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = app.conf.task_eager_propagates = True
    exclusive._handles[app] = Handle(app, store=memory_store(secrets.token_hex(4)))
    yield app
    app.close()


def defined(app: Any, **rules: Any) -> Any:
    """Return a task that holds its lock, and calls what it is given meanwhile."""
    inside: list[Any] = []

    @celery_sqlbeat.exclusive(key="balance:{account}", **rules)
    def balance(account: str, currency: str = "EUR") -> str:
        inside.append([lock.key for lock in exclusive._handles[app].locks.list()])
        return f"{account} in {currency}"

    return app.task(name="balance", shared=False)(balance), inside


def test_the_lock_is_held_while_the_body_runs_and_free_after_it(app: Any) -> None:
    task, inside = defined(app)
    assert task.delay("DE-17", currency="CHF").get() == "DE-17 in CHF"
    assert inside == [["balance:DE-17"]]
    assert exclusive._handles[app].locks.list() == []


def test_it_is_free_after_a_body_that_fails(app: Any) -> None:
    @celery_sqlbeat.exclusive(key="one")
    def fails() -> None:
        raise ValueError("no")

    task = app.task(shared=False)(fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            task.delay()


@pytest.mark.parametrize(("on_busy", "tries"), [("skip", 1), ("retry", 1), ("fail", 0)])
def test_while_another_one_runs_it_is_skipped_retried_or_fails(app: Any, on_busy: str, tries: int) -> None:
    task, inside = defined(app, on_busy=on_busy)
    exclusive._handles[app].store.take_lock("balance:DE-17", "another", "somebody else", 30)
    with events.recorded() as told:
        if on_busy == "skip":
            assert task.delay("DE-17").get() is None
        else:
            with pytest.raises((LockNotAcquired, Retry), match="held by somebody else"):
                task.delay("DE-17")
    assert inside == []
    texts = [str(event.fields["text"]) for event in told if event.name == "noted"]
    assert texts == ["balance leaves its work to somebody else, who holds the lock 'balance:DE-17'"] * tries
    assert task.delay("DE-18").get() == "DE-18 in EUR"


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"key": "a:{b}"}, r"\{b\} is no parameter of the function: write \{account\}"),
        ({"key": "a:{"}, "it is no format"),
        ({"key": ""}, "1 to 255 characters"),
        ({"key": "a", "on_busy": "wait"}, 'write "skip", "retry" or "fail"'),
        ({"key": "a", "wait": -1}, "wait = -1"),
        ({"key": "a", "expiry": 0}, "expiry = 0"),
    ],
)
def test_what_cannot_work_is_refused_where_the_task_is_defined(rules: dict[str, Any], says: str) -> None:
    with pytest.raises(FieldError, match=says):

        @celery_sqlbeat.exclusive(**rules)
        def body(account: str) -> None:
            """Do nothing."""


def test_it_is_refused_above_the_decorator_that_makes_a_task(app: Any) -> None:
    def body() -> None:
        """Do nothing."""

    with pytest.raises(FieldError, match="write it below"):
        celery_sqlbeat.exclusive(key="a")(app.task(shared=False)(body))


def test_as_many_run_as_their_pool_has_places(app: Any) -> None:
    @celery_sqlbeat.exclusive(pool="erp:2", on_busy="fail")
    def call(depth: int) -> list[str]:
        return [lock.key for lock in exclusive._handles[app].locks.list()]

    task = app.task(name="call", shared=False)(call)
    exclusive._handles[app].store.take_lock("pool:erp:001", "another", "nightly (run 1 on w)", 30)
    assert task.delay(1).get() == ["pool:erp:001", "pool:erp:002"]
    exclusive._handles[app].store.take_lock("pool:erp:002", "a third", "report (run 2 on w)", 30)
    with pytest.raises(LockNotAcquired, match=r"held by (nightly|report) \(run"):
        task.delay(1)


@pytest.mark.parametrize("header", [{"pool": "erp:1"}, None])
def test_the_run_of_a_job_has_its_place_of_the_pool_already(app: Any, header: Any) -> None:
    @celery_sqlbeat.exclusive(pool="erp:1", key="one", on_busy="fail")
    def call() -> list[str]:
        return [lock.key for lock in exclusive._handles[app].locks.list()]

    task = app.task(name="call", shared=False)(call)
    held = task.apply_async(headers=None if header is None else {"sqlbeat": header}).get()
    assert held == (["one"] if header else ["one", "pool:erp:001"])


@pytest.mark.parametrize("pool", ["erp", "erp:0", "erp:101", "e rp:1", "", 3])
def test_a_pool_that_names_no_number_of_runs_is_refused(pool: Any) -> None:
    with pytest.raises(FieldError, match='as in "erp:3"'):
        celery_sqlbeat.exclusive(pool=pool)

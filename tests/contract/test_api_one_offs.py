"""The Python handle submits one-offs on each store; what it publishes is what a beat would send."""

import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat import events
from celery_sqlbeat.api import Handle
from celery_sqlbeat.api.submitter import Submitter
from celery_sqlbeat.celery_bridge.app import rules_of
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import IdempotencyConflict, RunNotEnded, UnusableConnection
from celery_sqlbeat.model import Claim, Node
from celery_sqlbeat.model.nodes import tell_queues
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.publish.messages import HEADER
from celery_sqlbeat.publish.publisher import Publisher
from celery_sqlbeat.store import open_store
from tests.support.beats import wait_for
from tests.support.stock import untyped

STORES = ("memory", "redis", "sqlite", "postgresql", "mysql")
DISPATCH = 3.0  # seconds; a third of it is the time-out of statements
SUBMITTERS = 20


def pay(invoice: Any, amount: int = 0) -> None:
    """Do nothing."""


@pytest.fixture(scope="module", params=STORES)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a store; each test has a namespace of its own there."""
    if request.param == "memory":
        return f"memory://{secrets.token_hex(6)}"
    if request.param == "sqlite":
        return migrated(f"sqlite:///{tmp_path_factory.mktemp('one-offs') / 'jobs.db'}")
    return migrated(request.getfixturevalue(f"{request.param}_database")())


def migrated(url: str) -> str:
    """Create the tables of a database."""
    store = open_store(read_settings({"sqlbeat_database_url": url}, {}))
    store.migrate()
    store.close()
    return url


def handle_of(url: str, name: str) -> Handle:
    """Return the handle of an app whose namespace, broker and queue have this name."""
    app = Celery("shop", broker=f"memory://{name}", set_as_current=False)
    app.conf.update(
        task_default_queue=name,
        sqlbeat_database_url=url,
        sqlbeat_namespace=name,
        sqlbeat_dispatch_timeout=DISPATCH,
    )
    untyped(app).task(name="shop.pay", shared=False)(pay)
    return Handle(app, read_settings(app.conf, {}))


@pytest.fixture
def make_beat(url: str) -> Iterator[Callable[[], Handle]]:
    """Make handles of one store and namespace, as processes have them."""
    made: list[Handle] = []
    name = secrets.token_hex(6)

    def make() -> Handle:
        made.append(handle_of(url, name))
        if url.startswith("redis"):  # where each namespace has a store of its own
            made[-1].store.migrate()
        return made[-1]

    yield make
    for handle in made:
        handle.close()


@pytest.fixture
def beat(make_beat: Callable[[], Handle]) -> Handle:
    return make_beat()


def messages(beat: Handle) -> list[Any]:
    """Take what lies in the queue."""
    with beat.app.connection_for_read() as connection:
        queue = connection.SimpleQueue(beat.app.conf.task_default_queue)
        found = [queue.get_nowait() for _ in range(queue.qsize())]
        queue.close()
    return found


def claims(beat: Handle) -> list[Claim]:
    """Claim what is due, as a beat does, after it has given back what ended unpublished."""
    store = beat.store
    due = store.due(500)
    return store.claim(due, Planner(rules_of(beat.app, beat.settings))(due), "beat-1", DISPATCH).claims


def leasing_worker(beat: Handle) -> None:
    """Register a worker that keeps the leases of the queue."""
    queues = tell_queues([beat.app.conf.task_default_queue], {})
    beat.store.heartbeat(Node("worker-1", "worker", "host", 1, "0.1.0", queues=queues))


def test_what_was_submitted_is_read_back(beat: Handle) -> None:
    run = beat.submit("shop.pay", ["4711"], {"amount": 5}, countdown=3600)
    found = beat.runs.get(run.id)
    assert found is not None
    assert (found.id, found.job_name, found.task, found.kind, found.state) == (
        run.id,
        None,
        "shop.pay",
        "one_off",
        "scheduled",
    )
    assert (run.is_new, found.is_new) == (True, False)
    assert abs(found.scheduled_for - beat.store.pulse().now - timedelta(hours=1)) < timedelta(seconds=30)
    assert [each.id for each in beat.runs.list(one_off=True)] == [run.id]
    assert [each.id for each in beat.runs.list(one_off=True, state="scheduled")] == [run.id]
    assert beat.runs.list(one_off=True, state="running") == []
    assert beat.jobs.list() == []
    assert claims(beat) == []


def test_the_message_is_the_one_that_a_beat_sends_for_the_claim(beat: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    leasing_worker(beat)
    call: dict[str, Any] = {"args": ["4711"], "kwargs": {"amount": 5}, "options": {"priority": 4, "headers": {"a": 1}}}
    ours = beat.submit("shop.pay", **call)
    monkeypatch.setattr(Submitter, "publishes", lambda *_: False)
    theirs = beat.submit("shop.pay", **call)
    (claim,) = claims(beat)
    assert claim.run_id == theirs.id
    publisher = Publisher(beat.app)
    publisher.identify(beat.store.check_schema().store_id, beat.store.namespace)
    publisher.connect(5)
    assert publisher.publish([claim], float("inf")).confirmed
    publisher.close()
    first, second = messages(beat)
    assert (first.headers["id"], second.headers["id"]) == (ours.id, theirs.id)
    assert first.headers[HEADER]["fence"] == second.headers[HEADER]["fence"]
    assert plain(first, ours.id) == plain(second, theirs.id)


def plain(message: Any, run_id: str) -> Any:
    """Return what a message says, but for what each message has of its own."""
    headers = {**message.headers, HEADER: {**message.headers[HEADER], "claim": "its own"}}
    properties = {name: value for name, value in message.properties.items() if name != "delivery_tag"}
    return eval(repr((headers, properties, message.body)).replace(run_id, "run"))


def test_a_leased_message_is_marked_when_the_handle_is_closed(beat: Handle) -> None:
    leasing_worker(beat)
    beat.submit("shop.pay", [1])
    beat.close()
    deadlines = beat.store.next_deadlines()
    assert deadlines.lease_ends_at is not None  # that of a queued message, no more that of a claim
    assert deadlines.lease_ends_at - deadlines.now > timedelta(seconds=60)
    assert "forgotten" not in messages(beat)[0].headers[HEADER]


def test_the_mark_comes_by_itself(beat: Handle) -> None:
    run = beat.submit("shop.pay", [1])  # no worker keeps leases: it is fired and forgotten
    wait_for(lambda: (beat.runs.get(run.id) or run).state == "dispatched", 20)
    assert messages(beat)[0].headers[HEADER]["forgotten"] is True


def test_one_key_is_one_run_however_many_submit_it_at_once(make_beat: Callable[[], Handle]) -> None:
    handles = [make_beat() for _ in range(4)]
    for handle in handles:
        handle.submit("shop.pay", [0], countdown=3600)  # everybody is connected
    start, runs = threading.Barrier(SUBMITTERS), list[Any]()

    def submit(handle: Handle) -> None:
        start.wait()
        runs.append(handle.submit("shop.pay", [1], idempotency_key="pay:1"))

    threads = [threading.Thread(target=submit, args=(handles[at % 4],)) for at in range(SUBMITTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == SUBMITTERS
    assert len({run.id for run in runs}) == sum(run.is_new for run in runs) == 1
    assert len(messages(handles[0])) == 1


def test_a_key_of_something_else_names_both_and_adds_nothing(beat: Handle) -> None:
    first = beat.submit("shop.pay", [1], idempotency_key="k" * 10_000, countdown=3600)
    with pytest.raises(IdempotencyConflict) as conflict:
        beat.submit("shop.pay", [2], idempotency_key="k" * 10_000, countdown=3600)
    assert (conflict.value.run_id, conflict.value.first_task) == (first.id, "shop.pay")
    assert len(beat.runs.list(one_off=True)) == 1


def test_a_key_whose_time_is_over_stands_for_a_new_run(beat: Handle) -> None:
    first = beat.submit("shop.pay", [1], idempotency_key="short", ttl=0.05, countdown=3600)
    seen = beat.store.pulse().now
    wait_for(lambda: beat.store.pulse().now > seen + timedelta(seconds=0.1), 20)
    second = beat.submit("shop.pay", [2], idempotency_key="short", countdown=3600)
    assert second.is_new
    assert second.id != first.id


@pytest.mark.slow
def test_who_dies_before_the_message_is_followed_by_a_beat(beat: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Submitter, "publish", lambda *_: None)
    run = beat.submit("shop.pay", [1])
    assert claims(beat) == []
    wait_for(lambda: beat.store.expired(100).leases, 20)
    (lease,) = beat.store.expired(100).leases
    assert lease.run_id == run.id


def test_a_broker_that_takes_nothing_leaves_the_run_to_the_beats(beat: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    beat.submit("shop.pay", [0], countdown=3600)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("the broker has gone")

    monkeypatch.setattr("kombu.messaging.Producer._publish", fail)
    with events.recorded() as told:
        run = beat.submit("shop.pay", [1])
        beat.close()
    assert run.is_new
    assert "publish_failed" in [event.name for event in told]
    wait_for(lambda: [claim.run_id for claim in claims(beat)] == [run.id], 20)


def test_many_are_submitted_in_batches(beat: Handle) -> None:
    runs = beat.submit_many({"task": "shop.pay", "args": [number], "countdown": 3600} for number in range(1100))
    assert len({run.id for run in runs}) == 1100
    assert len(beat.runs.list(one_off=True, limit=None)) == 1100


def test_who_waits_is_told_that_the_time_is_over(beat: Handle) -> None:
    run = beat.submit("shop.pay", [1], countdown=3600)
    with pytest.raises(RunNotEnded, match="scheduled"):
        beat.runs.wait(run.id, 0.1)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shop_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Callable[[], Any]]:
    """Return the address of a database, and what opens connections of the shop to it."""
    if request.param == "sqlite":
        file = tmp_path_factory.mktemp("shop") / "jobs.db"
        return migrated(f"sqlite:///{file}"), partial(sqlite3.connect, file)
    url = migrated(request.getfixturevalue("postgresql_database")())
    return url, partial(pytest.importorskip("psycopg").connect, url)


@pytest.fixture
def shop_beat(shop_place: tuple[str, Callable[[], Any]]) -> Iterator[tuple[Handle, Callable[[], Any]]]:
    """Yield a handle, and what opens connections of the shop to the same database."""
    url, connect = shop_place
    beat = handle_of(url, secrets.token_hex(6))
    yield beat, connect
    beat.close()


def test_a_run_exists_if_the_transaction_of_the_shop_commits(shop_beat: tuple[Handle, Callable[[], Any]]) -> None:
    beat, connect = shop_beat
    connection = connect()
    lost = beat.submit("shop.pay", ["lost"], connection=connection, idempotency_key="k")
    assert (lost.is_new, lost.state) == (True, "scheduled")
    connection.rollback()
    assert beat.runs.get(lost.id) is None
    kept = beat.submit("shop.pay", ["kept"], connection=connection, idempotency_key="k")
    again = beat.submit("shop.pay", ["kept"], connection=connection, idempotency_key="k")
    assert (kept.is_new, again.is_new, again.id) == (True, False, kept.id)
    assert beat.runs.get(kept.id) is None
    connection.commit()
    connection.close()
    found = beat.runs.get(kept.id)
    assert found is not None
    assert (found.state, found.task) == ("scheduled", "shop.pay")
    assert messages(beat) == []
    (claim,) = claims(beat)
    assert (claim.run_id, list(claim.args)) == (kept.id, ["kept"])


def test_many_may_be_of_one_transaction(shop_beat: tuple[Handle, Callable[[], Any]]) -> None:
    beat, connect = shop_beat
    connection = connect()
    items = [{"task": "shop.pay", "args": [number], "connection": connection} for number in range(3)]
    runs = beat.submit_many(items)
    assert beat.runs.list(one_off=True) == []
    connection.commit()
    connection.close()
    assert {run.id for run in beat.runs.list(one_off=True)} == {run.id for run in runs}


def test_a_connection_to_another_database_is_refused_and_nothing_is_written(
    shop_beat: tuple[Handle, Callable[[], Any]], tmp_path: Path
) -> None:
    beat, _ = shop_beat
    other = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(UnusableConnection, match="another database"):
        beat.submit("shop.pay", [1], connection=other)
    other.close()
    with pytest.raises(UnusableConnection, match="closed"):
        beat.submit("shop.pay", [1], connection=other)
    with pytest.raises(UnusableConnection, match="no connection"):
        beat.submit("shop.pay", [1], connection="sqlite")
    assert beat.runs.list(one_off=True) == []


def test_a_store_without_transactions_says_so() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    beat = Handle(app, read_settings({"sqlbeat_database_url": f"memory://{secrets.token_hex(6)}"}, {}))
    with pytest.raises(UnusableConnection, match="not in a SQL database"):
        beat.submit("shop.pay", [1], connection=object())
    beat.close()

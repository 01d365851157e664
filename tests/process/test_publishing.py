"""A published message equals stock beat's for the same entry, in each way, on real brokers."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import celery.beat
import pytest
from celery import Celery, Task, signals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu import connection as wires

import tests.support.hypothesis_profile  # noqa: F401  # loads it
from celery_sqlbeat.model import Claim
from celery_sqlbeat.publish.publisher import Published, Publisher
from tests.support.brokers import Arrived, Place, place
from tests.support.claims import claim
from tests.support.stock import untyped

# Task attributes such as priority, which one of the tasks has on purpose.
pytestmark = pytest.mark.filterwarnings(r"ignore:\s*The .* task attribute\s+is deprecated")
SOON = 3.0  # seconds between two instants that should be the same


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Iterator[Place]:
    with place(request.param) as made:
        yield made


class Untyped(Task[Any, Any]):
    typing = False


def tasks(app: Celery) -> Celery:
    """Give an app some tasks."""

    def anything(*args: Any, **kwargs: Any) -> None: ...

    def pair(x: int, y: int = 0) -> None: ...

    kinds: list[tuple[str, Any, dict[str, Any]]] = [
        ("shop.add", anything, {}),
        ("shop.pair", pair, {}),
        ("shop.heavy", anything, {"priority": 3, "expires": 60, "ignore_result": True, "time_limit": 50}),
        ("shop.routed", anything, {}),
        ("shop.untyped", pair, {"base": Untyped, "serializer": "yaml"}),
        ("shop.shadowed", anything, {"shadow_name": lambda task, args, kwargs, options: f"shadow of {args}"}),
    ]
    for name, function, attributes in kinds:
        untyped(app).task(shared=False, name=name, **attributes)(function)
    return app


def published(publisher: Publisher, claims: list[Claim], seconds: float = 10) -> Published:
    publisher.connect(5)
    return publisher.publish(claims, time.monotonic() + seconds)


def stock(app: Celery, each: Claim) -> None:
    """Send what stock beat sends, only under the same task id."""
    scheduler = untyped(celery.beat.Scheduler(app, lazy=True))
    options = {**each.options, "task_id": each.run_id, "headers": dict(each.options.get("headers") or {})}
    entry = scheduler.Entry(each.job_name, each.task_name, None, 0, 10, each.args, each.kwargs, options, app=app)
    scheduler.apply_async(entry, producer=scheduler.producer, advance=False)
    scheduler.connection.release()


def assert_same(ours: Arrived, theirs: Arrived, each: Claim) -> None:
    headers = dict(ours.headers)
    extra = headers.pop("sqlbeat")
    assert (extra["run"], extra["claim"], extra["fence"]) == (each.run_id, each.claim_id, each.fence)
    assert headers.pop("periodic_task_name") == each.job_name
    assert headers.pop("celery_beat_task") is True
    assert headers.pop("argsrepr").startswith(theirs.headers["argsrepr"] + "  # ")
    expected = {name: value for name, value in theirs.headers.items() if name not in ("argsrepr", "celery_beat_task")}
    for name in ("eta", "expires"):
        assert_soon(headers.pop(name), expected.pop(name))
    assert headers == expected
    for ours_, theirs_ in [(ours.properties, theirs.properties)]:
        lately = {"expiration"}
        assert {k: v for k, v in ours_.items() if k not in lately} == {
            k: v for k, v in theirs_.items() if k not in lately
        }
        assert abs(int(ours_.get("expiration") or 0) - int(theirs_.get("expiration") or 0)) < SOON * 1000
    assert ours.body == theirs.body
    assert ours.content == theirs.content
    assert ours.destination == theirs.destination
    assert each.claim_id not in repr(theirs) + repr(headers) + repr(ours.body) + repr(ours.properties)


def assert_soon(ours: str | None, theirs: str | None) -> None:
    if ours is None or theirs is None:
        assert ours == theirs
    else:
        assert abs(datetime.fromisoformat(ours) - datetime.fromisoformat(theirs)) < timedelta(seconds=SOON)


def compare(broker: Place, app: Celery, claims: list[Claim], queue: str = "default", publisher: Any = None) -> None:
    """Publish by us and by stock beat, and find the same messages in the queue."""
    publisher = publisher or Publisher(app)
    result = published(publisher, claims)
    publisher.close()
    assert result.failed == [] and [sent.claim for sent in result.confirmed] == claims
    ours = broker.take(queue)
    for each in claims:
        stock(app, each)
    theirs = broker.take(queue)
    assert len(ours) == len(theirs) == len(claims)
    by_id = {message.properties["correlation_id"]: message for message in theirs}
    for message in ours:
        run_id = message.properties["correlation_id"]
        assert_same(message, by_id[run_id], next(each for each in claims if each.run_id == run_id))


NOW = datetime.now(timezone.utc)
SIGNATURE: dict[str, Any] = {
    "task": "shop.add",
    "args": [1],
    "kwargs": {},
    "options": {},
    "subtask_type": None,
    "immutable": False,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "priority": {"priority": 5},
    "priority zero": {"priority": 0},
    "expires in seconds": {"expires": 90},
    "expires in fractions": {"expires": 90.5},
    "expires at once": {"expires": 100000},
    "expires as text": {"expires": (NOW + timedelta(days=9)).isoformat()},
    "expires as an instant": {"expires": NOW + timedelta(days=9)},
    "countdown": {"countdown": 30},
    "countdown and expires": {"countdown": 30, "expires": 60},
    "eta as text": {"eta": "2099-01-31T09:00:00+00:00"},
    "eta as an instant": {"eta": datetime(2099, 1, 31, tzinfo=timezone.utc)},
    "serializer": {"serializer": "yaml"},
    "pickle": {"serializer": "pickle"},
    "compression": {"compression": "zlib"},
    "headers": {"headers": {"tenant": "a", "nested": {"x": [1, None]}}},
    "link": {"link": SIGNATURE},
    "links": {"link": [SIGNATURE, SIGNATURE], "link_error": SIGNATURE},
    "shadow": {"shadow": "other.name"},
    "time limits": {"time_limit": 30, "soft_time_limit": 20},
    "ignore result": {"ignore_result": True},
    "no retry": {"retry": False},
    "retry policy": {"retry": True, "retry_policy": {"max_retries": 1}},
    "delivery mode": {"delivery_mode": 1},
    "argsrepr": {"argsrepr": "(hidden)", "kwargsrepr": "{hidden}"},
    "root": {"root_id": "r", "parent_id": "p"},
    "group": {"group_id": "g", "group_index": 2},
    "reply to": {"reply_to": "somewhere"},
    "chain": {"chain": [SIGNATURE]},
}


@pytest.mark.parametrize("task", ["shop.unknown", "shop.add", "shop.heavy", "shop.shadowed"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_message_is_the_one_that_stock_beat_sends(broker: Place, task: str, options: dict[str, Any]) -> None:
    compare(broker, tasks(broker.app()), [claim(task, *args, **options) for args in [(1,), (), (2, "two", None)]])


def test_a_message_that_expires_in_years_is_not_lost(broker: Place) -> None:
    """RabbitMQ refuses a time to live beyond 49 days, and stock beat does not hear of it."""
    publisher = Publisher(broker.app())
    result = published(publisher, [claim("shop.x", i, expires="2099-01-31T09:00:00+00:00") for i in range(3)])
    publisher.close()
    assert len(result.confirmed) == 3
    assert [message.headers["expires"] for message in broker.take()] == ["2099-01-31T09:00:00+00:00"] * 3


def test_destinations_are_those_of_stock_beat(broker: Place) -> None:
    topic, direct = broker.queues["topic"], broker.queues["direct"]
    app = tasks(broker.app(task_routes={"shop.routed": {"queue": topic.name, "routing_key": "t.routed"}}))
    compare(broker, app, [claim("shop.routed", i) for i in range(3)], "topic")
    compare(broker, app, [claim("shop.add", i, queue=direct.name) for i in range(3)], "direct")
    if broker.kind == "rabbitmq":  # on Redis kombu does not know the type of an exchange that it did not declare
        to_exchange = {"exchange": topic.exchange.name, "routing_key": "t.hello"}
        compare(broker, app, [claim("shop.add", i, **to_exchange) for i in range(3)], "topic")


def test_a_router_that_looks_at_the_arguments_is_asked_for_each_message(broker: Place) -> None:
    direct, default = broker.queue("direct"), broker.queue("default")

    def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
        return {"queue": direct if args[0] == "there" else default}

    publisher = Publisher(broker.app(task_routes=(route,)))
    result = published(publisher, [claim("shop.x", where) for where in ("here", "there", "here", "there")])
    publisher.close()
    assert [sent.queue for sent in result.confirmed] == [default, direct, default, direct]
    assert len(broker.take("default")) == len(broker.take("direct")) == 2


def test_what_was_sent_says_where_and_how_long_it_waits(broker: Place) -> None:
    broker.take("topic")  # declares the exchange
    app = tasks(broker.app())
    eta = (datetime.now(timezone.utc) + timedelta(seconds=60)).isoformat()
    options: list[dict[str, Any]] = [{}, {}, {"countdown": 30}, {"countdown": 30}, {"eta": eta}, {"eta": eta}]
    options += [{"exchange": broker.queues["topic"].exchange.name, "routing_key": "t.x"}]
    publisher = Publisher(app)
    claims = [claim("shop.add", **each) for each in options]
    result = published(publisher, claims)
    publisher.close()
    waits = [sent.wait_seconds for sent in result.confirmed]
    assert waits == pytest.approx([0, 0, 30, 30, 60, 60, 0], abs=SOON)
    default = broker.queue("default")
    assert [sent.queue for sent in result.confirmed] == [default] * 6 + [None]
    assert [publisher.queue_of(each) for each in claims] == [default] * 6 + [None]
    assert publisher.queue_of(claim("shop.add", queue="no such queue", exchange="x")) is None
    broker.take("default"), broker.take("topic")


def test_lazy_arguments_are_worked_out_when_they_are_published(broker: Place) -> None:
    calls = iter(range(10))
    lazy = celery.beat.BeatLazyFunc(lambda: next(calls))
    publisher = Publisher(tasks(broker.app()))
    result = published(publisher, [claim("shop.add", lazy), claim("shop.add", lazy)])
    publisher.close()
    assert len(result.confirmed) == 2
    assert [message.headers["argsrepr"].split("  #")[0] for message in broker.take()] == ["[0]", "[1]"]


@pytest.mark.parametrize("first", [True, False], ids=["sensitive-first", "plain-first"])
@pytest.mark.parametrize("own", [{}, {"argsrepr": "(4,)"}], ids=["", "own"])
def test_each_way_hides_the_arguments_of_a_sensitive_job_and_of_no_other(
    broker: Place, first: bool, own: dict[str, Any]
) -> None:
    """The first message of a kind is made by Celery, and those after it from a template."""
    secrets = [first, first, not first, not first, first]
    claims = [claim("shop.add", 4711, "4711", **own)._replace(is_sensitive=each) for each in secrets]
    publisher = Publisher(tasks(broker.app()))
    assert len(published(publisher, claims).confirmed) == 5
    publisher.close()
    found = {message.headers["id"]: message for message in broker.take()}
    for each in claims:
        headers, body = found[each.run_id].headers, found[each.run_id].body
        assert ("4711" in headers["argsrepr"]) is not (each.is_sensitive or bool(own)), headers
        assert ("4711" in headers["kwargsrepr"]) is False
        assert headers["argsrepr"].startswith("('***',)") is each.is_sensitive
        assert "4711" in str(body)


def test_the_signals_of_celery_see_each_message(broker: Place) -> None:
    seen: list[tuple[str, str]] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        headers["traced"] = "yes"
        seen.append(("before", headers["id"]))

    def after(headers: dict[str, Any], **_: Any) -> None:
        seen.append(("after", headers["id"]))

    publisher = Publisher(broker.app())
    published(publisher, [claim() for _ in range(3)])  # so that there is a likeness before anybody listens
    signals.before_task_publish.connect(before, weak=False)
    signals.after_task_publish.connect(after, weak=False)
    try:
        claims = [claim() for _ in range(3)]
        published(publisher, claims)
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
        publisher.close()
    assert seen == [(when, each.run_id) for each in claims for when in ("before", "after")]
    assert [message.headers.get("traced") for message in broker.take()] == [None] * 3 + ["yes"] * 3


def test_sent_events_tell_of_each_message_and_keep_the_secret(broker: Place) -> None:
    app = broker.app(task_send_sent_event=True, event_exchange=f"{broker.prefix}.events")
    events: list[dict[str, Any]] = []
    claims = [claim("shop.x", i) for i in range(3)]
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"task-sent": events.append})
        with receiver.consumer_context(wakeup=False) as (consuming, _channel, _consumers):
            with contextlib.suppress(TimeoutError):
                consuming.drain_events(timeout=0.2)  # on Redis this is what subscribes
            publisher = Publisher(app)
            assert published(publisher, claims).failed == []
            publisher.close()
            end = time.monotonic() + 5
            while len(events) < 3 and time.monotonic() < end:
                consuming.drain_events(timeout=5)
    assert {event["uuid"] for event in events} == {each.run_id for each in claims}
    assert "secret" not in repr(events)
    broker.take()


a_connection: Any = wires.Connection  # kombu leaves it without types


def fails() -> Any:
    """Return an argument that asks something which is away."""
    raise ConnectionError("no answer")


def test_a_claim_that_cannot_be_published_fails_alone_and_it_is_known_whether_its_message_is_to_blame(
    broker: Place,
) -> None:
    app = tasks(broker.app(task_create_missing_queues=False))
    refused = {
        "cannot be written": claim("shop.add", object()),
        "wrong arguments": claim("shop.pair", 1, 2, 3),
        "unknown queue": claim("shop.add", queue="no such queue"),
        "unknown serializer": claim("shop.add", serializer="no such"),
        "wrong limits": claim("shop.add", time_limit="x", soft_time_limit={1}),
        "wrong expiry": claim("shop.add", expires="never"),
        "headers that are none": claim("shop.add", headers="x"),
        "headers that cannot be written": claim("shop.add", headers={"x": object()}),
        "unknown compression": claim("shop.add", compression="no such"),
        "a lazy argument": claim("shop.add", celery.beat.BeatLazyFunc(fails)),
    }
    bad = {}
    if broker.kind == "rabbitmq":
        refused["wrong priority"] = claim("shop.add", priority="x")
        refused["headers larger than a frame"] = claim("shop.add", headers={"x": "x" * 200_000})
        bad["unknown exchange"] = claim("shop.add", exchange="no such exchange", routing_key="x")
        bad["refused by the broker"] = claim("shop.add", user_id="somebody else")
        bad["what RabbitMQ falls over"] = claim("shop.add", headers={"x": float("inf")})
    good = [claim("shop.add", i) for i in range(40)]
    mixed = list(good)
    for place_, each in enumerate([*refused.values(), *bad.values()]):
        mixed.insert(place_ * 3 + 1, each)
    publisher = Publisher(app)
    for _ in range(2):  # the second time there are likenesses
        result = published(publisher, mixed)
        failed = {each.run_id: reason for each, reason in result.failed}
        assert failed.keys() == {each.run_id for each in bad.values()}, failed
        told = {each.claim.run_id: each for each in result.refused}
        assert told.keys() == {each.run_id for each in refused.values()}, told
        assert all("\n" not in each.error and each.error.split(":")[0] in each.traceback for each in told.values())
        assert "argument" in told[refused["wrong arguments"].run_id].error
        assert "no such queue" in told[refused["unknown queue"].run_id].error
        assert "no answer" in told[refused["a lazy argument"].run_id].error
        assert all("\n" not in reason and "secret" not in reason for reason in failed.values())
        assert [sent.claim for sent in result.confirmed] == good
        arrived = broker.take()
        assert {message.headers["id"] for message in arrived} == {each.run_id for each in good}
    assert len(arrived) == len(good), "the second time nobody's message goes out twice because of another's"
    publisher.close()


def test_a_queue_that_was_deleted_is_declared_again(broker: Place) -> None:
    publisher = Publisher(broker.app())
    published(publisher, [claim()])
    with broker.app().connection_for_write() as connection:
        untyped(connection.default_channel).queue_delete(broker.queue("default"))
    outcomes = [published(publisher, [claim()]) for _ in range(2)]
    publisher.close()
    if broker.kind == "rabbitmq":
        assert "no queue" in outcomes[0].failed[0][1]
    assert len(outcomes[1].confirmed) == 1
    assert outcomes[1].confirmed[0].claim.run_id in {message.headers["id"] for message in broker.take()}


def test_a_task_with_its_own_apply_async_is_asked(broker: Place) -> None:
    app = broker.app()
    asked: list[str] = []

    class Own(Task[Any, Any]):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]  # options come by name
            asked.append(options["task_id"])
            return super().apply_async((*args, "more"), kwargs, **options)

    def own(*args: Any) -> None: ...

    app.task(shared=False, name="shop.own", base=Own)(own)

    claims = [claim("shop.own", i) for i in range(3)]
    compare(broker, app, claims)
    assert asked == [each.run_id for each in claims] * 2


class Hooked:
    """A scheduler whose `apply_entry` some tool has wrapped."""

    def __init__(self, app: Celery, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        test = self

        class Scheduler(celery.beat.Scheduler):
            apply_entry = wrap(celery.beat.Scheduler.apply_entry)

            def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **options: Any) -> Any:
                send = functools.partial(super().apply_async, entry, producer, advance, **options)
                return test.publisher.watch(send)

        self.scheduler = Scheduler(app, lazy=True)
        self.publisher = Publisher(app, self.scheduler.apply_entry, self.entry_of)

    def entry_of(self, each: Claim) -> Any:
        return untyped(self.scheduler).Entry(each.job_name, each.task_name, None, 0, 10, each.args, each.kwargs)


def test_what_a_wrapped_apply_entry_chose_not_to_send_is_no_failure(broker: Place) -> None:
    def wrap(apply_entry: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(scheduler: Any, entry: Any, *args: Any, **kwargs: Any) -> Any:
            return None if entry.name == "holiday" else apply_entry(scheduler, entry, *args, **kwargs)

        return wrapped

    hooked = Hooked(tasks(broker.app()), wrap)
    sent, left_out = claim("shop.add", 1), claim("shop.add", 2, name="holiday")
    result = published(hooked.publisher, [sent, left_out])
    hooked.publisher.close()
    assert [each.claim for each in result.confirmed] == [sent]
    assert (result.failed, result.declined) == ([], [(left_out, "apply_entry sent nothing")])
    assert [message.headers["id"] for message in broker.take()] == [sent.run_id]


def test_a_wrapped_apply_entry_sees_each_entry_and_may_add_headers(broker: Place) -> None:
    seen: list[str] = []

    def wrap(apply_entry: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(apply_entry)
        def wrapped(scheduler: Any, entry: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(entry.name)
            headers = entry.options.pop("headers", {})
            entry.options["headers"] = {**headers, "monitor": entry.name}
            return apply_entry(scheduler, entry, *args, **kwargs)

        return wrapped

    app = tasks(broker.app())
    hooked = Hooked(app, wrap)
    claims = [claim(task, i) for i, task in enumerate(["shop.add", "shop.unknown", "shop.heavy"])]
    bad = claim("shop.pair", 1, 2, 3)
    result = published(hooked.publisher, [*claims, bad])
    hooked.publisher.close()
    assert [sent.claim for sent in result.confirmed] == claims
    ((refused, error, _),) = result.refused
    assert (refused, result.failed) == (bad, []) and "shop.pair" not in seen
    assert error.startswith("TypeError: ") and "argument" in error  # not what Celery's scheduler puts around it
    assert seen == [each.job_name for each in [*claims, bad]]
    arrived = broker.take()
    assert [message.headers["monitor"] for message in arrived] == [each.job_name for each in claims]
    assert [untyped(message.headers)["sqlbeat"]["claim"] for message in arrived] == [each.claim_id for each in claims]
    assert {sent.queue for sent in result.confirmed} == {broker.queue("default")}


def test_stock_beats_line_about_each_due_task_stays(broker: Place, caplog: pytest.LogCaptureFixture) -> None:
    """What a program submits is no due task of a beat, and adds no line to its log."""
    caplog.set_level("INFO", "celery.beat")
    app = broker.app()
    of_a_program = Publisher(app)
    published(of_a_program, [claim("shop.z", name="submitted")])
    of_a_program.close()
    publisher = Publisher(app, celery.beat.Scheduler(app, lazy=True).apply_entry, lambda _claim: None)
    published(publisher, [claim("shop.x", name="nightly"), claim("shop.y", name="hourly")])
    publisher.close()
    lines = [record.getMessage() for record in caplog.records if record.name == "celery.beat"]
    assert lines == [
        "Scheduler: Sending due task nightly (shop.x)",
        "Scheduler: Sending due task hourly (shop.y)",
    ]
    broker.take()


def test_nobody_waits_for_a_result_backend_that_is_away(broker: Place) -> None:
    publisher = Publisher(tasks(broker.app(result_backend="redis://127.0.0.1:1/0")))
    started = time.monotonic()
    result = published(publisher, [claim("shop.add"), claim("shop.add")])
    publisher.close()
    assert len(result.confirmed) == 2 and time.monotonic() - started < 2
    assert len(broker.take()) == 2


def test_a_result_backend_that_is_away_is_no_fault_of_the_message(broker: Place) -> None:
    """If a tool wraps `send_task`, Celery itself sends, after it has subscribed to the result."""
    app = tasks(broker.app(result_backend="redis://127.0.0.1:1/0"))
    app.conf.update(redis_retry_on_timeout=False, redis_socket_connect_timeout=0.1)
    app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0, "timeout": 0.1}}
    untyped(app).send_task = functools.partial(app.send_task)
    publisher = Publisher(app)
    result = published(publisher, [claim("shop.add")])
    publisher.close()
    assert len(result.failed) == 1 and not result.refused, result
    assert broker.take() == []


def test_a_connection_of_the_tasks_own_that_fails_is_no_fault_of_the_message(broker: Place) -> None:
    app = broker.app()

    class Elsewhere(Task[Any, Any]):
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]  # options come by name
            with a_connection("amqp://127.0.0.1:1//", connect_timeout=1) as connection:
                connection.connect()

    def elsewhere(*args: Any) -> None: ...

    app.task(shared=False, name="shop.elsewhere", base=Elsewhere)(elsewhere)
    publisher = Publisher(app)
    result = published(publisher, [claim("shop.elsewhere")])
    publisher.close()
    assert len(result.failed) == 1 and not result.refused, result


numbers = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)


def test_a_broker_without_confirmations_is_published_to_all_the_same() -> None:
    app = tasks(Celery("shop", broker="memory://", set_as_current=False))
    publisher = Publisher(app)
    claims = [claim("shop.add", i) for i in range(5)]
    bad = claim("shop.add", object())
    result = published(publisher, [*claims, bad])
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        arrived = [queue.get(timeout=1) for _ in claims]
        queue.close()
    publisher.close()
    assert [sent.claim for sent in result.confirmed] == claims and [each.claim for each in result.refused] == [bad]
    assert [untyped(message.headers)["sqlbeat"]["claim"] for message in arrived] == [each.claim_id for each in claims]
    assert [message.payload[0] for message in arrived] == [[i] for i in range(5)]


plain = st.none() | st.booleans() | numbers | st.text(max_size=30)
arguments = st.lists(st.recursive(plain, lambda inner: st.lists(inner, max_size=3), max_leaves=5), max_size=4)
some_options = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(0, 9),
        "expires": st.integers(1, 1000) | st.floats(1, 1000),
        "countdown": st.integers(1, 1000),
        "shadow": st.text(min_size=1, max_size=5),
        "headers": st.dictionaries(st.sampled_from("abc"), plain, max_size=2),
        "ignore_result": st.booleans(),
        "time_limit": st.integers(50, 90),
        "serializer": st.sampled_from(["json", "yaml"]),
        "argsrepr": st.text(max_size=5),
    },
)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["shop.unknown", "shop.add", "shop.heavy"]), some_options, st.lists(arguments, max_size=3))
def test_no_combination_of_options_and_arguments_differs_from_stock_beat(
    broker: Place, task: str, options: dict[str, Any], calls: list[list[Any]]
) -> None:
    compare(broker, tasks(broker.app()), [claim(task, *args, **options) for args in [[], *calls]])

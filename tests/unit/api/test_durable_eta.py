"""Ordinary calls with an eta far ahead become one-offs under their own id; nothing else does."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery

from celery_sqlbeat import events
from celery_sqlbeat.api import Handle
from celery_sqlbeat.api.durable_eta import keep_far_calls
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.model.one_offs import CancelRequest
from celery_sqlbeat.store import Store
from tests.support.stock import untyped
from tests.unit.api.test_one_offs import Rows

HOUR = timedelta(hours=1)
RUN = "01a00000-0000-7000-8000-000000000001"


class KeptRows(Rows):
    """Rows that can be found again and cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled: list[CancelRequest] = []
        self.state = "scheduled"

    def runs(self, query: Any) -> list[Any]:
        """Return those that were submitted."""
        return [
            SimpleNamespace(run_id=one.run_id, kind="one_off", state=self.state)
            for one in self.written
            if one.run_id in query.run_ids
        ]

    def cancel(self, requests: list[CancelRequest]) -> dict[str, Any]:
        """Note who is to end."""
        self.cancelled += requests
        return {}


@pytest.fixture
def rows() -> KeptRows:
    return KeptRows()


@pytest.fixture
def make_app(rows: KeptRows, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    made: list[Handle] = []

    def make(**conf: Any) -> Any:
        name = f"eta{abs(hash(request.node.nodeid))}"
        app = Celery("shop", broker=f"memory://{name}", backend="cache+memory://", set_as_current=False)
        app.conf.update(task_default_queue=name, sqlbeat_durable_eta=900, **conf)

        def pay(invoice: Any, amount: int = 0) -> None: ...

        untyped(app).task(name="shop.pay", shared=False)(pay)
        beat = Handle(app, read_settings(app.conf, {}), cast(Store, rows))
        made.append(beat)
        keep_far_calls(beat)
        return app

    yield make
    for beat in made:
        beat.close()


@pytest.fixture
def app(make_app: Callable[..., Any]) -> Any:
    return make_app()


def messages(app: Any) -> list[Any]:
    """Take what lies in the queue."""
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.conf.task_default_queue)
        found = [queue.get_nowait() for _ in range(queue.qsize())]
        queue.close()
    return found


def test_a_call_far_ahead_is_kept_under_its_id_with_its_options_and_links(app: Any, rows: KeptRows) -> None:
    link = app.signature("shop.pay", args=("next",))
    result = app.tasks["shop.pay"].apply_async(
        ("4711",), {"amount": 5}, countdown=3600, task_id=RUN, link=link, headers={"tenant": 7}, priority=3
    )
    (one,) = rows.written
    assert (result.id, one.run_id, one.task_name, one.args, one.kwargs) == (
        RUN,
        RUN,
        "shop.pay",
        '["4711"]',
        '{"amount": 5}',
    )
    assert one.options is not None
    for part in ('"tenant": 7', '"priority": 3', '"next"', '"link"'):
        assert part in one.options
    assert one.max_retries == 0
    assert messages(app) == []
    assert type(result).__name__ == "AsyncResult"


@pytest.mark.parametrize("as_text", [True, False])
def test_an_eta_is_kept_as_it_was_given(app: Any, rows: KeptRows, as_text: bool) -> None:
    eta = datetime(2099, 1, 1, tzinfo=timezone.utc)
    app.send_task("shop.elsewhere", ["x"], eta=eta.isoformat() if as_text else eta)
    assert rows.written[0].due_at == eta


def test_what_expires_is_counted_from_the_call(app: Any, rows: KeptRows) -> None:
    before = datetime.now(timezone.utc)
    app.send_task("shop.pay", ["x"], countdown=1000, expires=2000)
    assert rows.written[0].options is not None
    year = str((before + timedelta(seconds=2000)).date())
    assert f'"expires": "{year}' in rows.written[0].options


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"countdown": 800},
        {"eta": datetime(2020, 1, 1, tzinfo=timezone.utc)},
        {"countdown": 3600, "retries": 1},
        {"countdown": 3600, "headers": {"sqlbeat": {}}},
        {"countdown": 3600, "task_id": "no uuid"},
    ],
    ids=str,
)
def test_what_is_near_or_not_ordinary_is_sent_as_ever(app: Any, rows: KeptRows, options: dict[str, Any]) -> None:
    app.tasks["shop.pay"].apply_async(("4711",), **options)
    assert len(messages(app)) == 1
    assert rows.written == []


def test_what_a_row_cannot_keep_is_sent_as_ever_and_told(app: Any, rows: KeptRows) -> None:
    app.conf.accept_content = ["pickle"]
    with events.recorded() as told:
        app.send_task("shop.pay", [{1, 2}], countdown=3600, serializer="pickle")
    assert rows.written == []
    assert [event.fields["topic"] for event in told if event.name == "advice"] == ["durable eta"]


def test_what_the_task_does_not_take_is_refused_as_ever(app: Any, rows: KeptRows) -> None:
    with pytest.raises(TypeError):
        app.tasks["shop.pay"].apply_async((), countdown=3600)
    assert rows.written == []


def test_without_the_setting_celery_does_what_it_does(make_app: Callable[..., Any], rows: KeptRows) -> None:
    app = Celery("shop", broker="memory://off", set_as_current=False)
    app.conf.task_default_queue = "off"
    keep_far_calls(Handle(app, read_settings({}, {}), cast(Store, rows)))
    app.send_task("shop.pay", ["x"], countdown=10**6)
    assert len(messages(app)) == 1
    assert rows.written == []


def test_a_process_without_this_package_sends_as_ever(
    make_app: Callable[..., Any], rows: KeptRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLBEAT_DISABLE", "1")
    app = make_app()
    app.send_task("shop.pay", ["x"], countdown=10**6)
    assert len(messages(app)) == 1
    assert rows.written == []


@pytest.mark.parametrize("is_made_before", [True, False])
def test_to_revoke_it_cancels_it_and_tells_the_workers_as_ever(
    rows: KeptRows, make_app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, is_made_before: bool
) -> None:
    told: list[Any] = []
    monkeypatch.setattr("celery.app.control.Control.broadcast", lambda *args, **kwargs: told.append((args[1], kwargs)))
    original = Celery.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if is_made_before:
            assert self.control

    monkeypatch.setattr(Celery, "__init__", made)
    app = make_app()
    result = app.send_task("shop.pay", ["x"], countdown=3600)
    result.revoke()
    app.control.revoke(["no uuid", RUN])
    assert [request.run_id for request in rows.cancelled] == [result.id]
    assert rows.cancelled[0].reason == "revoked"
    assert [command for command, _ in told] == ["revoke", "revoke"]


@pytest.mark.parametrize("terminates", [True, False])
def test_what_runs_goes_on_unless_it_is_to_be_terminated(
    rows: KeptRows, app: Any, monkeypatch: pytest.MonkeyPatch, terminates: bool
) -> None:
    monkeypatch.setattr("celery.app.control.Control.broadcast", lambda *_, **__: None)
    result = app.send_task("shop.pay", ["x"], countdown=3600)
    rows.state = "running"
    result.revoke(terminate=terminates)
    assert len(rows.cancelled) == terminates

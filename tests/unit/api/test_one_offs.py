"""What is submitted: checked field by field, written once, and published where it is due now."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery

from celery_sqlbeat import environment, events
from celery_sqlbeat.api import Handle
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import DatabaseBusy, FieldError, IdempotencyConflict, SqlbeatError
from celery_sqlbeat.model import Claim, SeenNode
from celery_sqlbeat.model.nodes import tell_queues, tell_tasks, with_mark
from celery_sqlbeat.model.one_offs import IdempotencyKey, OneOff, Submitted
from celery_sqlbeat.publish.messages import HEADER
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import Recorded

NOW = datetime(2027, 1, 1, 12, tzinfo=timezone.utc)


class Rows:
    """A store that keeps what is submitted, and what is recorded of it."""

    def __init__(self) -> None:
        self.written: list[OneOff] = []
        self.keys: dict[str, tuple[str, IdempotencyKey, str]] = {}
        self.forgotten: list[str] = []
        self.calls: list[int] = []
        self.seen: list[SeenNode] = []
        self.known = tell_tasks(["shop.other"])

    def submit(self, one_offs: Sequence[OneOff], submitter: str, dispatch_seconds: float) -> dict[str, Submitted]:
        """Add them, each key once."""
        self.calls.append(len(one_offs))
        return {each.run_id: self._submit(each) for each in one_offs}

    def _submit(self, one: OneOff) -> Submitted:
        if one.key is not None:
            run_id, key, task = self.keys.setdefault(one.key.text, (one.run_id, one.key, one.task_name))
            if run_id != one.run_id:
                return Submitted(run_id, False, NOW, NOW, 0, task, key.digest)
        self.written.append(one)
        return Submitted(one.run_id, True, one.due_at or NOW, NOW, 1 if one.claim_id else 0)

    def check_schema(self) -> Any:
        """Return the id of the store."""
        return SimpleNamespace(store_id="store-1")

    def pulse(self) -> Any:
        """Return the clock."""
        return SimpleNamespace(now=NOW)

    def nodes(self, memory_seconds: float) -> list[SeenNode]:
        """Return nobody, unless the test says so: what is sent is fired and forgotten."""
        return self.seen

    def tasks(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """Return what the workers know."""
        return dict.fromkeys(node_ids, self.known)

    def runs(self, query: Any) -> list[Any]:
        """Return none: they were purged."""
        return []

    def mark_published(self, published: Iterable[tuple[Claim, float]]) -> Recorded:
        """Say that all are marked."""
        return Recorded({claim.run_id for claim, _ in published}, set())

    def finish(self, releases: Any, guard: Any) -> Recorded:
        """Note what ended."""
        ids = {release.run_id for release in releases}
        self.forgotten += ids
        return Recorded(ids, set())

    def close(self) -> None:
        """Close nothing."""


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def beat(rows: Rows, request: pytest.FixtureRequest) -> Iterator[Handle]:
    broker = f"memory://{abs(hash(request.node.nodeid))}"
    app = Celery("shop", broker=broker, set_as_current=False)
    app.conf.task_default_queue = f"q{abs(hash(request.node.nodeid))}"

    @app.task(name="shop.pay", shared=False)
    def pay(invoice: Any, amount: int = 0) -> None: ...

    settings = read_settings({"sqlbeat_max_payload": 1000, "sqlbeat_allowed_tasks": ["shop.*"]}, {})
    handle = Handle(app, settings, cast(Store, rows))
    yield handle
    handle.close()


def messages(beat: Handle) -> list[Any]:
    """Take what lies in the queue."""
    with beat.app.connection_for_read() as connection:
        queue = connection.SimpleQueue(beat.app.conf.task_default_queue)
        found = []
        while queue.qsize():
            found.append(queue.get_nowait())
        queue.close()
    return found


def test_what_is_due_now_is_published_by_the_submitter_as_a_beat_does(beat: Handle, rows: Rows) -> None:
    run = beat.submit("shop.pay", ["4711"], options={"priority": 3})
    (message,) = messages(beat)
    (one_off,) = rows.written
    assert (run.id, run.job_name, run.task, run.is_new, run.state) == (
        one_off.run_id,
        None,
        "shop.pay",
        True,
        "claimed",
    )
    header = message.headers[HEADER]
    assert (header["run"], header["claim"], header["fence"]) == (run.id, one_off.claim_id, 1)
    assert (header["store"], header["namespace"]) == ("store-1", "default")
    assert (message.headers["id"], message.headers["task"]) == (run.id, "shop.pay")
    assert message.properties["priority"] == 3
    assert "periodic_task_name" not in message.headers
    assert message.payload[0] == ["4711"]


def test_the_message_carries_the_policies_that_its_worker_keeps(beat: Handle, rows: Rows) -> None:
    beat.submit("shop.pay", ["4711"], pool="erp:3", dead_on=["ValueError"])
    (message,) = messages(beat)
    header = message.headers[HEADER]
    assert header["pool"] == "erp:3" and list(header["retry"]["dead_on"]) == ["ValueError"]


def test_what_was_published_is_recorded_at_the_latest_when_the_handle_is_closed(beat: Handle, rows: Rows) -> None:
    runs = beat.submit_many({"task": "shop.pay", "args": [number]} for number in range(3))
    beat.close()
    assert sorted(rows.forgotten) == sorted(run.id for run in runs)


def test_what_is_for_later_is_left_to_the_beats(beat: Handle, rows: Rows) -> None:
    run = beat.submit("shop.pay", ["4711"], countdown=timedelta(days=21))
    assert messages(beat) == []
    (one_off,) = rows.written
    assert one_off.claim_id is None
    assert one_off.due_at is not None
    assert abs(one_off.due_at - NOW - timedelta(days=21)) < timedelta(seconds=5)
    assert (run.state, run.due_at) == ("scheduled", one_off.due_at)


def test_an_eta_that_has_passed_runs_now(beat: Handle, rows: Rows) -> None:
    assert beat.submit("shop.pay", [1], eta=NOW - timedelta(hours=1)).state == "claimed"
    assert rows.written[0].due_at is None


def test_an_eta_without_a_zone_is_taken_as_utc_and_said(beat: Handle, rows: Rows) -> None:
    with events.recorded() as told:
        beat.submit("shop.pay", [1], eta="2027-01-31T09:00:00")
    assert rows.written[0].due_at == datetime(2027, 1, 31, 9, tzinfo=timezone.utc)
    assert [event.fields["topic"] for event in told if event.name == "advice"] == ["eta"]


def seen(kind: str, **fields: Any) -> SeenNode:
    """Return a living node."""
    node = SeenNode(f"{kind}-1", kind, "host", 1, "0.1.0", None, None, None, None, 0, None, None, NOW, NOW, None, NOW)
    return node._replace(**fields)


def test_beats_with_another_broker_are_left_to_send_it_themselves(beat: Handle, rows: Rows) -> None:
    rows.seen = [seen("beat", broker_fingerprint="redis//elsewhere:6379/0")]
    with events.recorded() as told:
        runs = [beat.submit("shop.pay", [number]) for number in range(2)]
    assert {run.state for run in runs} == {"scheduled"}
    assert messages(beat) == []
    assert [event.name for event in told].count("conflict_found") == 1


def test_a_task_that_no_worker_knows_is_left_to_the_beats_which_wait_for_one(beat: Handle, rows: Rows) -> None:
    queues = tell_queues([beat.app.conf.task_default_queue], {})
    rows.seen = [seen("worker", queues=queues, details=with_mark(None, rows.known))]
    assert beat.submit("shop.pay", [1]).state == "scheduled"
    assert beat.submit("shop.other", [1]).state == "claimed"


def test_a_worker_that_came_a_moment_ago_gets_leased_messages(
    beat: Handle, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [environment.monotonic()]
    machine = environment.THIS_MACHINE._replace(clock=lambda: now[0])
    monkeypatch.setattr(beat.one_offs._submitter_here()._workers, "_machine", machine)
    beat.submit("shop.pay", [1])
    rows.seen = [seen("worker", queues=tell_queues([beat.app.conf.task_default_queue], {}))]
    beat.submit("shop.pay", [2])  # the workers were read just now
    now[0] += 2
    beat.submit("shop.pay", [3])
    assert ["forgotten" in message.headers[HEADER] for message in messages(beat)] == [True, True, False]


def test_one_key_gives_one_run(beat: Handle, rows: Rows) -> None:
    first = beat.submit("shop.pay", ["4711"], idempotency_key="pay:4711")
    second = beat.submit("shop.pay", ["4711"], idempotency_key="pay:4711", ttl=5)
    assert (first.is_new, second.is_new) == (True, False)
    assert first.id == second.id
    assert len(rows.written) == len(messages(beat)) == 1


@pytest.mark.parametrize(("task", "args"), [("shop.pay", ["4712"]), ("shop.refund", ["4711"])])
def test_one_key_for_another_call_is_a_conflict_that_names_both(beat: Handle, task: str, args: list[Any]) -> None:
    first = beat.submit("shop.pay", ["4711"], idempotency_key="pay:4711")
    with pytest.raises(IdempotencyConflict, match="pay:4711") as raised:
        beat.submit(task, args, idempotency_key="pay:4711")
    assert (raised.value.task, raised.value.first_task, raised.value.run_id) == (task, "shop.pay", first.id)


@pytest.mark.parametrize("key", ["pay:4711", None])
def test_who_waits_in_the_crowd_of_a_key_gets_a_second_turn(
    beat: Handle, rows: Rows, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    submit, asked = rows.submit, list[Sequence[OneOff]]()

    def busy_at_first(one_offs: Sequence[OneOff], *more: Any) -> dict[str, Submitted]:
        asked.append(one_offs)
        if len(asked) == 1:
            raise DatabaseBusy("somebody has the key")
        return submit(one_offs, *more)

    monkeypatch.setattr(rows, "submit", busy_at_first)
    if key is None:
        with pytest.raises(DatabaseBusy):
            beat.submit("shop.pay", [1])
        return
    assert beat.submit("shop.pay", [1], idempotency_key=key).is_new
    assert asked[0] == asked[1]


def test_a_long_key_is_hashed_and_no_two_of_them_are_one(beat: Handle, rows: Rows) -> None:
    beat.submit("shop.pay", [1], idempotency_key="k" * 10_000)
    beat.submit("shop.pay", [1], idempotency_key="k" * 9_999)
    assert len({one.key.text for one in rows.written if one.key}) == 2
    assert all(len(one.key.text) <= 255 for one in rows.written if one.key)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"task": ""}, "TaskName"),
    ({"task": None}, "TaskName"),
    ({"task": "other.task"}, "TaskName"),
    ({"args": [print]}, "Args"),
    ({"args": "text"}, "Args"),
    ({"args": []}, "Args"),
    ({"args": ["x" * 1001]}, "Args"),
    ({"kwargs": {"amount": {1, 2}}}, "Kwargs"),
    ({"kwargs": {"unheard": 1}}, "Kwargs"),
    ({"countdown": -1}, "countdown"),
    ({"countdown": float("nan")}, "countdown"),
    ({"countdown": "soon"}, "countdown"),
    ({"countdown": 1, "eta": NOW}, "eta"),
    ({"eta": "tomorrow"}, "eta"),
    ({"eta": 5}, "eta"),
    ({"ttl": 5}, "ttl"),
    ({"idempotency_key": "k", "ttl": -5}, "ttl"),
    ({"idempotency_key": "k", "ttl": 0}, "ttl"),
    ({"idempotency_key": ""}, "idempotency_key"),
    ({"idempotency_key": "a\0b"}, "idempotency_key"),
    ({"idempotency_key": 5}, "idempotency_key"),
    ({"options": {"priority": 1000}}, "Options.priority"),
    ({"options": {"countdown": 5}}, "Options.countdown"),
    ({"options": {"task_id": "x"}}, "Options.task_id"),
    ({"options": {"serializer": "unheard"}}, "Options.serializer"),
    ({"max_retries": -1}, "Policies.max_retries"),
    ({"overlap": "allow"}, "Policies"),
    ({"unheard": 5}, "Policies"),
    ({"task": "shop.unheard", "strict": True}, "TaskName"),
]


@pytest.mark.parametrize(("fields", "field"), BAD, ids=lambda value: str(value)[:60])
def test_what_cannot_work_is_refused_by_one_error_that_names_the_field(
    beat: Handle, rows: Rows, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(FieldError) as refused:
        beat.submit(**{"task": "shop.pay", "args": [1], **fields})
    assert refused.value.field == field
    assert "\n" not in str(refused.value)
    assert rows.written == []


def test_a_bad_item_is_named_and_nothing_of_its_batch_is_written(beat: Handle, rows: Rows) -> None:
    items: list[dict[str, Any]] = [
        {"task": "shop.pay", "args": [1]},
        {"task": "shop.pay", "args": [2], "countdown": -1},
    ]
    with pytest.raises(FieldError, match="item 1, countdown = -1"):
        beat.submit_many(items)
    with pytest.raises(FieldError, match=r"item 0 = 'shop\.pay'"):
        beat.submit_many(cast(Any, ["shop.pay"]))
    assert rows.written == []
    assert messages(beat) == []


def test_many_are_written_in_batches_and_their_progress_is_told(beat: Handle, rows: Rows) -> None:
    told: list[int] = []
    later = [{"task": "shop.pay", "args": [number], "countdown": 60} for number in range(1201)]
    runs = beat.submit_many(later, told.append)
    assert rows.calls == told == [500, 500, 201]
    assert [run.id for run in runs] == [one.run_id for one in rows.written]


def test_of_one_key_in_one_batch_the_second_finds_the_first(beat: Handle, rows: Rows) -> None:
    runs = beat.submit_many([{"task": "shop.pay", "args": [1], "idempotency_key": "k", "countdown": 5}] * 3)
    assert [run.is_new for run in runs] == [True, False, False]
    assert len({run.id for run in runs}) == len(rows.written) == 1


def test_no_item_is_nothing(beat: Handle, rows: Rows) -> None:
    assert beat.submit_many([]) == []
    assert rows.calls == []


def test_a_task_that_is_not_registered_here_is_allowed_and_told_once(beat: Handle, rows: Rows) -> None:
    with events.recorded() as told:
        beat.submit("shop.elsewhere", [1])
        beat.submit("shop.elsewhere", [2])
    texts = [event.fields["text"] for event in told if event.name == "advice" and event.fields["topic"] == "task"]
    assert len(texts) == 1
    assert "shop.elsewhere" in texts[0]
    assert len(rows.written) == 2


def test_a_broker_that_is_away_costs_no_submission(beat: Handle, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    beat.submit("shop.pay", [0], countdown=60)

    def refuse(**_: Any) -> Any:
        raise ConnectionRefusedError("no broker")

    monkeypatch.setattr(beat.app, "connection_for_write", refuse)
    with events.recorded() as told:
        runs = [beat.submit("shop.pay", [number]) for number in range(2)]
    assert [run.state for run in runs] == ["scheduled", "scheduled"]
    assert [one.claim_id for one in rows.written] == [None, None, None]
    assert [event.name for event in told].count("broker_unavailable") == 1


def test_a_message_that_fails_leaves_the_run_to_the_beats(
    beat: Handle, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("as it happens")

    monkeypatch.setattr("celery_sqlbeat.publish.publisher.Publisher.send", fail)
    with events.recorded() as told:
        run = beat.submit("shop.pay", [1])
    assert (run.state, run.is_new) == ("claimed", True)
    assert [event.name for event in told if event.name == "fault_caught"]
    beat.close()
    assert rows.forgotten == []


def test_the_errors_can_cross_to_another_process() -> None:
    import pickle

    conflict: SqlbeatError = IdempotencyConflict("k", "a", "run", "b")
    assert str(pickle.loads(pickle.dumps(conflict))) == str(conflict)

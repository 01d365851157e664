"""Jobs that no message can be made of, and jobs that no broker takes, beside one that is in order.

Real beats.
"""

import json
from typing import Any

import pytest

from celery_sqlbeat.model.lifecycle import DLQ, RETRY
from celery_sqlbeat.store.records import RunQuery
from tests.process.conftest import MakeShop
from tests.process.test_command_line import run
from tests.support.beats import assert_clean, wait_for
from tests.support.views import AdminView

pytestmark = pytest.mark.slow

_TASKS = """\
@app.task(name="shop.pair")
def pair(a, b):
    return a + b


from celery.beat import BeatLazyFunc


def fails():
    raise ConnectionError("no answer")


app.conf.beat_schedule = {
    "lazy": {"task": "shop.add", "schedule": 1, "args": [BeatLazyFunc(fails)]},
    "set": {"task": "shop.add", "schedule": 1, "args": [{1, 2}]},
}
"""
_SAYS = {
    "arguments": "TypeError: pair() missing 1 required positional argument",
    "queue": "QueueNotFound: ",
    "serializer": "SerializerNotInstalled: ",
    "lazy": "ConnectionError: no answer",
    "set": "EncodeError: ",
}


@pytest.mark.parametrize(("database", "broker"), [("sqlite", "redis"), ("postgresql", "rabbitmq")])
def test_what_can_never_be_published_ends_in_the_dead_letters_with_its_error(
    make_shop: MakeShop, database: str, broker: str
) -> None:
    shop = make_shop(database, broker)
    settings: dict[str, Any] = {
        "sqlbeat_max_retries": 2,
        "sqlbeat_retry_base": 0.2,
        "task_create_missing_queues": False,
    }
    shop.write({}, extra=_TASKS, **settings)
    shop.add("good", at=shop.now())
    shop.add("arguments", task_name="shop.pair", at=shop.now(), schedule="every 1h")
    shop.add("queue", options='{"queue": "nowhere"}', at=shop.now(), schedule="every 1h")
    shop.add("serializer", options='{"serializer": "none"}', at=shop.now(), schedule="every 1h")
    beat = shop.start()
    admin, dead = AdminView(shop.store), RunQuery(only_dead=True)
    wait_for(lambda: {letter.job_name for letter in admin.runs(dead)} == _SAYS.keys(), 60, shop.logs)
    for letter in admin.runs(dead):
        assert letter.error is not None and letter.error.startswith(_SAYS[letter.job_name]), letter
        assert (letter.failures, letter.attempt, letter.published_at) == (3, 3, None), letter
        assert "Traceback" in (letter.traceback or "")
    runs = [run for run in shop.runs() if run.job_name == "arguments"]
    assert sorted((run.attempt, run.state) for run in runs) == [(1, RETRY), (2, RETRY), (3, DLQ)]
    shop.wait_for_more(2)  # the job that is in order goes on
    health = run(shop, "health")
    assert (
        health.returncode == 1 and "job arguments could not be published 3 times in a row: TypeError" in health.stderr
    )
    explained = run(shop, "explain", "arguments")
    assert "cannot be published: TypeError: pair() missing 1 required positional argument" in explained.stdout
    beat.stop()
    assert {message.headers["periodic_task_name"] for message in shop.place.take()} == {"good"}


def test_what_the_broker_itself_refuses_is_not_counted_and_is_told(make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", "rabbitmq")
    shop.write({})
    shop.add(
        "refused", options=json.dumps({"exchange": "nowhere", "routing_key": "x"}), at=shop.now(), schedule="every 1h"
    )
    shop.add("good", at=shop.now())
    beat = shop.start()
    wait_for(lambda: "refused" in run(shop, "health").stderr, 60, shop.logs)
    health = run(shop, "health")
    assert "job refused could not be published" in health.stderr and "nowhere" in health.stderr, health.stderr
    explained = run(shop, "explain", "refused")
    assert "its slot was given back (NotFound: " in explained.stdout, explained.stdout
    assert {(run.attempt, run.failures) for run in shop.runs() if run.job_name == "refused"} == {(1, 0)}, shop.runs()
    shop.statement("UPDATE Jobs SET Options = NULL WHERE JobName = 'refused'")
    wait_for(lambda: run(shop, "health").returncode == 0, 60, shop.logs)
    beat.stop()
    assert_clean(beat)

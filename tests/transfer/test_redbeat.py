"""The move from redbeat, also to the Redis where it was: such a shop needs no SQL database.

Its entries are made by redbeat, in a real Redis, under a prefix of their own.
"""

import secrets
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab, schedule, solar
from redbeat.schedulers import RedBeatSchedulerEntry, get_redis
from redbeat.schedules import rrule

from celery_sqlbeat.api import Handle
from celery_sqlbeat.errors import SourceUnreadable
from celery_sqlbeat.transfer.from_entries import from_redbeat
from tests.servers import server
from tests.transfer.conftest import Open, move

Make = Callable[..., RedBeatSchedulerEntry]
STATIC: dict[str, Any] = {"static": {"task": "shop.static", "schedule": 60.0}}


def now() -> datetime:
    return datetime.now(timezone.utc)


@pytest.fixture(params=["sqlite", "memory", "redis"])
def shop(open_shop: Open, request: pytest.FixtureRequest) -> Iterator[Handle]:
    prefix = f"sqlbeat-test-[{secrets.token_hex(4)}]*:"  # with characters that mean something in a pattern
    url = server("redis")
    handle = open_shop(
        {"sqlite": None, "memory": "memory://", "redis": url}[request.param],
        redbeat_redis_url=url,
        redbeat_key_prefix=prefix,
        redbeat_redis_options={"socket_timeout": 5},
        beat_schedule=STATIC,
        result_expires=None,
    )
    yield handle
    client = get_redis(handle.app)
    keys = [key for key in client.scan_iter(match="sqlbeat-test-*") if key.startswith(prefix)]
    keys += client.scan_iter(match=f"sqlbeat:{{{handle.settings.namespace}}}:*")
    if keys:
        client.delete(*keys)
    client.close()


@pytest.fixture
def make(shop: Handle) -> Make:
    """Save an entry as redbeat does; with `ran`, let it have run then."""

    def entry(name: str, every: Any, ran: datetime | None = None, **fields: Any) -> RedBeatSchedulerEntry:
        made = RedBeatSchedulerEntry(name, "shop.task", every, app=shop.app, **fields)
        made.save()
        return made._next_instance(last_run_at=ran) if ran is not None else made

    return entry


def due_in_redbeat(shop: Handle, entry: RedBeatSchedulerEntry) -> datetime:
    score = get_redis(shop.app).zscore(shop.app.redbeat_conf.schedule_key, entry.key)
    return datetime.fromtimestamp(score, timezone.utc)


def test_each_entry_fires_next_when_redbeat_would_have_fired_it(shop: Handle, make: Make) -> None:
    ran = now() - timedelta(seconds=1)
    entries = {
        "often": make("often", schedule(timedelta(minutes=5)), ran, args=[1, "ü"], kwargs={"k": None}),
        "nightly": make("nightly", crontab(hour="3", minute="30"), ran, options={"queue": "q", "priority": 3}),
    }
    steps = move(shop, from_redbeat(shop.app, shop.settings))
    assert {name: step.action for name, step in steps.items()} == {"often": "add", "nightly": "add", "static": "code"}
    for name, entry in entries.items():
        job = shop.jobs.get(name)
        assert job is not None and job.last_run_time == ran and job.code_owner is None
        assert job.next_run_time is not None
        assert abs(job.next_run_time - due_in_redbeat(shop, entry)) < timedelta(seconds=3), name
    often, nightly = shop.jobs.get("often"), shop.jobs.get("nightly")
    assert often is not None and (often.task, often.args, often.kwargs) == ("shop.task", [1, "ü"], {"k": None})
    assert nightly is not None and (nightly.schedule, nightly.options) == (
        "cron 30 3 * * *",
        {"queue": "q", "priority": 3},
    )


def test_an_entry_that_is_overdue_is_due_at_once(shop: Handle, make: Make) -> None:
    ran = now() - timedelta(days=3)
    make("late", schedule(timedelta(hours=1)), ran)
    step = move(shop, from_redbeat(shop.app, shop.settings))["late"]
    assert step.next_run_time == ran + timedelta(hours=1), "the claim sees how many slots were missed since"


def test_an_entry_that_never_ran_counts_from_when_it_was_made(shop: Handle, make: Make) -> None:
    entry = make("new", schedule(timedelta(hours=1)))
    step = move(shop, from_redbeat(shop.app, shop.settings))["new"]
    assert step.next_run_time is not None and step.last_run_time is None
    assert abs(step.next_run_time - due_in_redbeat(shop, entry)) < timedelta(seconds=3)


def test_an_entry_without_any_instant_is_due_at_once(shop: Handle, make: Make) -> None:
    entry = make("new", schedule(timedelta(hours=1)))
    get_redis(shop.app).hdel(entry.key, "meta")
    step = move(shop, from_redbeat(shop.app, shop.settings))["new"]
    assert step.next_run_time is not None and step.last_run_time is None
    assert abs(step.next_run_time - now()) < timedelta(seconds=60)


def test_a_disabled_entry_stays_disabled(shop: Handle, make: Make) -> None:
    make("off", schedule(60.0), enabled=False)
    move(shop, from_redbeat(shop.app, shop.settings))
    job = shop.jobs.get("off")
    assert job is not None and (job.enabled, job.disabled_reason) == (False, "disabled in redbeat")


def test_what_redbeat_knows_of_an_entry_of_the_code_comes_along(shop: Handle, make: Make) -> None:
    ran = now() - timedelta(seconds=30)
    make("static", schedule(60.0), ran, enabled=False)
    steps = move(shop, from_redbeat(shop.app, shop.settings))
    assert steps["static"].action == "code"
    job = shop.jobs.get("static")
    assert job is not None and job.code_owner == "shop"
    assert (job.last_run_time, job.next_run_time) == (ran, ran + timedelta(seconds=60))
    assert (job.enabled, job.disabled_reason) == (False, "disabled in the old scheduler")


def test_what_cannot_come_along_is_said(shop: Handle, make: Make) -> None:
    make("rule", rrule("MONTHLY", bymonthday=-1))
    make("odd options", schedule(60.0), options={"priority": 300})
    client = get_redis(shop.app)
    client.hset(shop.app.redbeat_conf.key_prefix + "broken", "definition", "{")
    make("former", schedule(60.0))
    client.sadd(shop.app.redbeat_conf.statics_key, "former")
    make("good", schedule(60.0))
    steps = move(shop, from_redbeat(shop.app, shop.settings))
    assert {name: step.action for name, step in steps.items()} == {
        "rule": "left",
        "odd options": "left",
        "broken": "left",
        "former": "left",
        "good": "add",
        "static": "code",
    }
    assert "the class rrule cannot be written as text" in steps["rule"].remarks[0]
    assert "priority" in steps["odd options"].remarks[0]
    assert "redbeat cannot read it" in steps["broken"].remarks[0]
    assert "left the beat_schedule" in steps["former"].remarks[0]


def test_nothing_in_redis_is_changed_and_a_second_time_nothing_happens(shop: Handle, make: Make) -> None:
    make("a", schedule(60.0), now())
    client = get_redis(shop.app)
    prefix = shop.app.redbeat_conf.key_prefix
    keys = sorted(key for key in client.scan_iter(match="sqlbeat-test-*") if key.startswith(prefix))
    before = {key: client.hgetall(key) for key in keys if client.type(key) == "hash"}
    move(shop, from_redbeat(shop.app, shop.settings))
    again = move(shop, from_redbeat(shop.app, shop.settings))
    assert {step.action for step in again.values()} == {"same"}
    assert before and {key: client.hgetall(key) for key in before} == before


def test_a_redis_that_does_not_answer_is_an_error(open_shop: Open) -> None:
    shop = open_shop(redbeat_redis_url="redis://127.0.0.1:1/0", redbeat_redis_options={"socket_timeout": 1})
    with pytest.raises(SourceUnreadable, match="Redis does not answer"):
        from_redbeat(shop.app, shop.settings)


def test_a_solar_entry_is_none_of_redbeats(shop: Handle, make: Make) -> None:
    """A solar entry cannot be kept by redbeat itself."""
    with pytest.raises(TypeError):
        make("sun", solar("sunset", 51.5, -0.12))

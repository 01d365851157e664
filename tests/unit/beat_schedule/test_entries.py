"""A `beat_schedule` is read entry by entry.

What becomes text, what stays with the code, and what is wrong.
"""

import enum
import functools
import shelve
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import VERSION, Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import crontab, schedule, solar

from celery_sqlbeat.beat_schedule.entries import (
    CodeEntry,
    CodeSchedule,
    job_name_of,
    owner_of,
    read_entries,
    shown_release,
)
from celery_sqlbeat.beat_schedule.plan import StockRun
from celery_sqlbeat.beat_schedule.shelve_file import runs_in_file
from celery_sqlbeat.celery_bridge.app import app_zone
from celery_sqlbeat.celery_bridge.schedules import default_entries, digest
from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.model.beat_schedule import as_json
from tests.support.stock import in_zone

UTC = timezone.utc


def app_of(name: str | None = "shop", **conf: Any) -> Celery:
    app = Celery(name, set_as_current=False)
    app.conf.update(conf)
    return app


def read(entries: Mapping[Any, Any], **conf: Any) -> CodeSchedule:
    return read_entries(app_of(**conf), entries)


def one(**fields: Any) -> CodeEntry:
    code = read({"job": {"task": "t", "schedule": 60, **fields}})
    assert code.problems == []
    return code.entries["job"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (30, "every 30s"),
        (0.5, "every 0.5s"),
        (timedelta(hours=1), "every 1h"),
        (schedule(90), "every 1m30s"),
        (crontab(minute="*/5", day_of_week="mon-fri"), "cron */5 * * * mon-fri"),
        (solar("sunset", 51.5, -0.12), "solar sunset 51.5 -0.12"),
        ("every 5s", "every 5s"),
        ("cron 0 9 * * *", "cron 0 9 * * *"),
    ],
)
def test_stock_schedules_become_text(value: Any, text: str) -> None:
    definition = one(schedule=value).definition
    assert (definition.schedule, definition.time_zone, definition.code_key) == (text, "UTC", None)


def test_a_relative_interval_stays_relative() -> None:
    assert one(schedule=timedelta(hours=1), relative=True).definition.schedule == "every 1h relative"


def test_the_time_zone_is_the_schedules_or_that_of_a_policy_or_the_apps() -> None:
    entries = {"a": {"task": "t", "schedule": crontab()}, "b": {"task": "t", "schedule": crontab()}}
    if VERSION >= (5, 7):
        entries["c"] = {"task": "t", "schedule": in_zone(crontab(), ZoneInfo("Asia/Tokyo"))}
    policies = policies_from_setting({"b": {"timezone": "Africa/Cairo"}, "c": {"timezone": "Africa/Cairo"}})
    code = read_entries(app_of(timezone="Europe/Berlin"), entries, policies=policies)
    zones = {name: (entry.definition.time_zone, entry.has_own_zone) for name, entry in code.entries.items()}
    assert zones.pop("c", None) in (None, ("Asia/Tokyo", True))
    assert zones == {"a": ("Europe/Berlin", False), "b": ("Africa/Cairo", False)}


def test_a_schedule_that_was_asked_for_its_zone_still_has_none_of_its_own() -> None:
    app = app_of(timezone="Europe/Berlin")
    stock = crontab(app=app)
    assert str(stock.tz) == "Europe/Berlin"
    assert (
        read_entries(app, {"a": {"task": "t", "schedule": stock}}).entries["a"].definition.time_zone == "Europe/Berlin"
    )


def test_a_host_without_utc_is_read_in_its_own_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert app_zone(app_of(enable_utc=False)) == "Europe/Berlin"
    assert app_zone(app_of(timezone="Asia/Tokyo")) == "Asia/Tokyo"
    assert app_zone(app_of()) == "UTC"
    code = read({"a": {"task": "t", "schedule": crontab()}}, enable_utc=False)
    assert (code.problems, code.entries["a"].definition.code_key) == ([], None)


def test_a_clock_that_shows_the_time_of_day_is_text_and_any_other_is_code() -> None:
    tokyo = one(schedule=crontab(nowfun=lambda: datetime.now(ZoneInfo("Asia/Tokyo")))).definition
    assert tokyo.schedule == "cron * * * * *" and tokyo.code_key is None
    for clock in (
        lambda: datetime(2027, 1, 1, tzinfo=UTC),
        lambda: datetime.now(UTC) + timedelta(hours=1),
        lambda: 1 / 0,
    ):
        entry = ScheduleEntry("job", "t", datetime.now(UTC), schedule=crontab(nowfun=clock), app=app_of())
        definition = read({"job": entry}).entries["job"].definition
        assert definition.schedule == "code" and definition.code_key


def test_arguments_and_options_are_kept_as_json() -> None:
    definition = one(args=(1, "ü", None), kwargs={"k": [1.5, {"x": True}]}, options={"queue": "q"}).definition
    assert definition.args == '[1, "ü", null]'
    assert definition.kwargs == '{"k": [1.5, {"x": true}]}'
    assert definition.options == '{"queue": "q"}'
    empty = one(args=(), kwargs={}, options=None).definition
    assert (empty.args, empty.kwargs, empty.options, empty.code_key) == (None, None, None, None)


def test_instants_and_durations_among_the_options_become_what_celery_takes_as_well() -> None:
    at = datetime(2027, 1, 1, tzinfo=UTC)
    definition = one(options={"eta": at, "expires": timedelta(minutes=5)}).definition
    assert definition.options == '{"eta": "2027-01-01T00:00:00+00:00", "expires": 300.0}'
    assert one(options={"expires": at}).definition.options == '{"expires": "2027-01-01T00:00:00+00:00"}'
    assert one(options={"expires": 1.5}).definition.options == '{"expires": 1.5}'


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 1


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        {1: 2},
        {1, 2},
        b"x",
        float("nan"),
        float("inf"),
        Decimal("1.5"),
        datetime(2027, 1, 1, tzinfo=UTC),
        Colour.RED,
        Level.HIGH,
        object(),
        len,
        BeatLazyFunc(len, "x"),
        {"deep": [{"er": (1,)}]},
        pytest.param(10**5000, id="huge"),
    ],
)
def test_what_json_would_change_stays_with_the_code(value: Any) -> None:
    for fields in ({"args": [value]}, {"kwargs": {"k": value}}, {"options": {"x": value}}):
        definition = one(**fields).definition
        assert definition.schedule == "every 1m" and definition.code_key
        assert (definition.args, definition.kwargs, definition.options) == (None, None, None)


def test_json_reads_back_what_was_written() -> None:
    assert (
        as_json(["\ud800", "日本", -0.0, 2**70, "\0"])
        == '["\\ud800", "\\u65e5\\u672c", -0.0, 1180591620717411303424, "\\u0000"]'
    )
    nested: list[Any] = []
    nested.append(nested)
    assert as_json(nested) is None


class Fortnights(schedule):
    pass


class Duck:
    """Not even a schedule of Celery's."""

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        return False, 1.0

    def now(self) -> datetime:
        return datetime.now(UTC)


def test_custom_schedules_are_code() -> None:
    code = read({"a": {"task": "t", "schedule": Fortnights(60)}, "b": {"task": "t", "schedule": Duck()}})
    assert [entry.definition.schedule for entry in code.entries.values()] == ["code", "code"]
    assert set(code.by_key()) == {entry.definition.code_key for entry in code.entries.values()}
    assert code.by_key()[code.entries["a"].definition.code_key or ""].entry.schedule == Fortnights(60)


def test_entries_of_celerys_own_class_are_read_as_they_are() -> None:
    entry = ScheduleEntry("job", "t", schedule=schedule(timedelta(seconds=5)), args=(1,), app=app_of())
    code = read({"job": entry})
    assert code.entries["job"].entry is entry
    assert code.entries["job"].definition.schedule == "every 5s"


def test_celerys_own_entries_are_added() -> None:
    app = app_of(result_backend="file:///tmp")
    found = default_entries(app, {})
    code = read_entries(app, found)
    definition = code.entries["celery.backend_cleanup"].definition
    assert (definition.schedule, definition.options) == ("cron 0 4 * * *", '{"expires": 43200}')
    assert default_entries(app, {"celery.backend_cleanup": {}}) == {}
    assert default_entries(app_of(result_expires=None), {}) == {}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"task": "t"}, "Schedule"),
        ({"schedule": 5}, "TaskName"),
        ({"task": 5, "schedule": 5}, "TaskName"),
        ({"task": "", "schedule": 5}, "TaskName"),
        ({"task": "t" * 201, "schedule": 5}, "at most 200"),
        ({"task": "t", "schedule": 0}, "between 0.001"),
        ({"task": "t", "schedule": "nonsense"}, "a schedule is one of"),
        ({"task": "t", "schedule": object()}, "Schedule"),
        ({"task": "t", "schedule": "cron 0 0 31 2 *"}, "Schedule"),
        ({"task": "t", "schedule": 5, "shedule": 6}, "an entry has any of task, schedule"),
        ({"task": "t", "schedule": 5, "args": "text"}, "Args"),
        ({"task": "t", "schedule": 5, "args": 7}, "Args"),
        ({"task": "t", "schedule": 5, "kwargs": [1]}, "Kwargs"),
        ({"task": "t", "schedule": 5, "options": "x"}, "Options"),
        ("nonsense", "beat_schedule"),
        (None, "beat_schedule"),
    ],
)
def test_a_wrong_entry_is_reported_by_name_and_stops_no_other(value: Any, reason: str) -> None:
    code = read({"wrong": value, "right": {"task": "t", "schedule": 5}})
    assert list(code.entries) == ["right"] and code.wrong == {"wrong"}
    ((name, said),) = code.problems
    assert name == "wrong" and reason in said


def test_a_schedule_that_breaks_while_it_is_read_stops_no_other() -> None:
    class Broken:
        nowfun = None

        def is_due(self, last_run_at: datetime) -> None:
            raise RuntimeError

        def now(self) -> datetime:
            raise RuntimeError("no clock")

    code = read({"wrong": {"task": "t", "schedule": Broken()}, "right": {"task": "t", "schedule": 5}})
    assert list(code.entries) == ["right"]
    assert code.problems[0].reason == "RuntimeError: no clock"


def test_names_fit_their_column() -> None:
    assert job_name_of("plain") == "plain"
    assert job_name_of(7) == "7"
    long = job_name_of("x" * 500)
    assert len(long) <= 200 and long != job_name_of("x" * 501) and long == job_name_of("x" * 500)
    assert len(job_name_of("🕰" * 150).encode("utf-16-le")) <= 400
    assert job_name_of("t(<object object at 0x7f00aa>)") == "t(<object object>)"
    code = read({"1": {"task": "t", "schedule": 5}, 1: {"task": "t", "schedule": 5}, "": {"task": "t", "schedule": 5}})
    assert list(code.entries) == ["1"]
    assert [problem.name for problem in code.problems] == ["1", ""]
    assert code.wrong == {""}


def test_the_owner_is_the_app_or_the_source_of_its_configuration() -> None:
    assert owner_of(app_of("shop")) == "shop"
    assert owner_of(app_of(None)) == "celery"
    app = Celery(set_as_current=False)
    app.config_from_object("tests.servers")
    assert owner_of(app) == "tests.servers"


def test_the_owner_of_an_app_without_a_name_is_the_module_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    app, plain = Celery(set_as_current=False), {"a": {"task": "t", "schedule": 5}}
    for name, held in (
        ("celery.elsewhere", app),
        ("theirs", Celery(set_as_current=False)),
        ("ours", app),
        ("later", app),
    ):
        module = ModuleType(name)
        module.any_name = held  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    assert owner_of(app) == "ours"
    assert not read_entries(app, plain).is_named and read_entries(app_of("shop"), plain).is_named


def test_the_release_follows_what_the_entries_say() -> None:
    plain = {"a": {"task": "t", "schedule": 5}, "b": {"task": "t", "schedule": 6}}
    release = read(plain).release
    assert len(release) == 64
    assert read(dict(reversed(plain.items()))).release == release
    assert read({**plain, "b": {"task": "t", "schedule": 7}}).release != release
    assert read(plain, timezone="Europe/Berlin").release != release
    assert read_entries(app_of("office"), plain).release != release


def test_a_release_that_has_a_name_still_tells_groups_of_entries_apart() -> None:
    plain = {"a": {"task": "t", "schedule": 5}, "b": {"task": "t", "schedule": 6}}
    named = read_entries(app_of(), plain, release="v1").release
    assert shown_release(named) == "v1"
    assert read_entries(app_of(), {**plain, "b": {"task": "t", "schedule": 7}}, release="v1").release == named
    assert read_entries(app_of(), {"a": plain["a"]}, release="v1").release != named
    assert len(shown_release(read(plain).release)) == 12


def key(**fields: Any) -> str:
    return one(**{"args": [BeatLazyFunc(len)], **fields}).definition.code_key or ""


def test_a_code_key_follows_what_can_be_known_of_an_entry() -> None:
    assert key() == key()
    others = [
        key(args=[BeatLazyFunc(max)]),
        key(args=[BeatLazyFunc(len, 1)]),
        key(task="other"),
        key(kwargs={"k": 1}),
        key(schedule=Fortnights(60)),
        key(schedule=Fortnights(61)),
        key(args=[functools.partial(len)]),
    ]
    assert len({key(), *others}) == len(others) + 1


def test_a_code_key_does_not_follow_the_moment_at_which_it_is_made() -> None:
    assert key(args=[object()]) == key(args=[object()])
    assert key(args=[datetime.now(UTC) + timedelta(microseconds=1)]) == key(
        args=[datetime(2027, 1, 1, 1, 1, 1, 1, tzinfo=UTC)]
    )


def test_a_structure_that_holds_itself_has_a_fingerprint() -> None:
    inner: dict[str, Any] = {}
    inner["self"] = inner
    assert digest(inner) == digest(inner)


def test_last_runs_are_read_from_the_file_of_stock_beat(tmp_path: Path) -> None:
    path = str(tmp_path / "celerybeat-schedule")
    at = datetime(2027, 1, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    app = app_of()
    with shelve.open(path) as stored:
        stored["entries"] = {
            "ran": ScheduleEntry("ran", "t", at, 5, schedule(5), app=app),
            "never": ScheduleEntry("never", "t", at, 0, schedule(5), app=app),
        }
    utc = datetime(2027, 1, 1, 11, tzinfo=UTC)
    assert runs_in_file(path) == {"ran": StockRun(utc, True), "never": StockRun(utc, False)}
    assert runs_in_file(str(tmp_path / "missing")) == {}
    assert list(tmp_path.glob("missing*")) == []


def test_a_file_that_cannot_be_read_is_said_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "celerybeat-schedule"
    path.write_bytes(b"no shelve")
    assert runs_in_file(str(path)) == {}
    assert "begin anew" in caplog.text and path.read_bytes() == b"no shelve"


def test_a_last_run_that_is_no_instant_is_a_problem_of_its_entry() -> None:
    (problem,) = read({"job": {"task": "t", "schedule": 60, "last_run_at": "yesterday"}}).problems
    assert problem.reason.startswith("last_run_at = 'yesterday'")


def test_entries_that_give_their_messages_an_id_are_known() -> None:
    entries = {
        "own": {"task": "t", "schedule": 60, "options": {"task_id": "x"}},
        "lazy": {"task": "t", "schedule": 60, "args": [object()], "options": {"task_id": "x"}},
        "none": {"task": "t", "schedule": 60, "options": {"queue": "x"}},
    }
    assert read(entries).with_task_id() == ["own", "lazy"]

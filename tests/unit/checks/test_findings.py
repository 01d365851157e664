"""What gathered facts mean: each family of findings by itself."""

import dataclasses
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from celery_sqlbeat.api.status import Process, WorkerTasks
from celery_sqlbeat.beat_schedule.entries import EntryProblem
from celery_sqlbeat.celery_bridge.inspect_workers import Answer
from celery_sqlbeat.checks import Finding, installation, jobs, workers
from celery_sqlbeat.checks.facts import BrokerFacts, CodeFacts, DatabaseFacts, EnabledJob, Facts, JobFacts, listed
from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.config.policy import Policy
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import DatabaseUnavailable, DriverMissing, MigrationChanged, SchemaError, StoreError
from celery_sqlbeat.model import LivingRelease

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
REDIS = "redis//localhost:6379/0"


def process(**facts: Any) -> Process:
    plain: dict[str, Any] = {
        "id": "beat@a/1",
        "kind": "beat",
        "host": "a",
        "pid": 1,
        "state": "alive",
        "version": "0.1",
        "release": None,
        "queues": (),
        "broker": REDIS,
        "claimed": 0,
        "skew_seconds": 0.001,
        "started_at": NOON,
        "heartbeat_at": NOON,
        "silent_seconds": 0.0,
    }
    return Process(**{**plain, **facts})


def job(name: str = "a", task: str = "shop.add", queue: str | None = "celery", lease: float = 120.0) -> EnabledJob:
    return EnabledJob(name, task, queue, lease)


WORKER = process(id="w@a/2", kind="worker", queues=("celery",))
OURS = {"version": "0.1", "store": "store-1", "namespace": "default", "node": "w@a/2", "runs": 0}


def answer(name: str = "w@a", *queues: str, **extension: Any) -> Answer:
    return Answer(name, frozenset(queues or ("celery",)), {**OURS, **extension})


def facts(
    jobs: Iterable[EnabledJob] = (),
    processes: Iterable[Process] = (process(), WORKER),
    answers: Iterable[Answer] | None = (answer(),),
    quarantined: dict[str, str] | None = None,
    is_complete: bool = True,
    skew: float = 0.0,
    visibility: float | None = None,
    tasks: frozenset[str] = frozenset({"shop.add"}),
    registered_tasks: frozenset[str] | None = None,
    policies: dict[str, Policy] | None = None,
    problems: Iterable[EntryProblem] = (),
    living: Iterable[LivingRelease] = (),
    owner: str = "shop",
    **conf: Any,
) -> Facts:
    return Facts(
        read_settings(conf, {}),
        DatabaseFacts(
            "store-1", skew, tuple(processes), JobFacts(tuple(jobs), quarantined or {}, is_complete), tuple(living)
        ),
        BrokerFacts("redis", REDIS, visibility, None if answers is None else tuple(answers), registered_tasks),
        CodeFacts(tasks, policies or {}, tuple(problems), owner),
    )


def only(found: Iterable[Finding]) -> Finding:
    (one,) = found
    assert one.remedy
    return one


FAMILIES = [
    installation.configuration_findings,
    installation.clock_findings,
    installation.broker_findings,
    workers.findings,
    jobs.row_findings,
    jobs.code_findings,
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_where_all_is_well_nothing_is_found(family: Any) -> None:
    assert list(family(facts([job()]))) == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_where_the_facts_are_unknown_nothing_is_found(family: Any) -> None:
    assert list(family(Facts(read_settings({}, {}), None, None, None))) == []


def test_a_list_of_names_stays_short() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([*"abcdefg"]) == "a, b, c, d, e and 2 more"


def test_a_lease_too_short_for_its_heartbeats_is_a_warning_that_says_how_long_it_must_be() -> None:
    found = only(installation.configuration_findings(facts([job("short", lease=10.0), job("long")])))
    assert (found.level, found.name) == ("warning", "heartbeat")
    assert "short" in found.says and "long" not in found.says.replace("so", "")
    least = installation.shortest_lease(read_settings({}, {}))
    assert f"more than {least:.0f} s" in found.remedy
    assert installation.heartbeats_fit(read_settings({}, {}), least)
    assert not installation.heartbeats_fit(read_settings({}, {}), least - 1)


def test_a_wrong_clock_is_named_with_its_host() -> None:
    found = only(installation.clock_findings(facts(processes=[process(skew_seconds=30.0), WORKER])))
    assert (found.level, found.name) == ("warning", "clock")
    assert "a (beat@a/1) +30.0 s" in found.says
    assert "this machine -5.0 s" in only(installation.clock_findings(facts(skew=-5.0))).says


def test_a_beat_that_is_gone_has_no_clock() -> None:
    assert list(installation.clock_findings(facts(processes=[process(skew_seconds=900.0, state="silent")]))) == []


def test_a_lease_shorter_than_twice_the_skew_is_an_error() -> None:
    skewed, short = installation.clock_findings(facts([job("tiny", lease=50.0)], skew=40.0))
    assert skewed.name == "clock"
    assert (short.level, short.name) == ("error", "lease")
    assert "the lease of job tiny (50 s)" in short.says
    assert "sqlbeat_lock_timeout" not in short.says
    assert "sqlbeat_lock_timeout (120 s)" in list(installation.clock_findings(facts(skew=61.0)))[1].says


def test_a_visibility_timeout_shorter_than_a_lease_is_an_error() -> None:
    found = only(installation.broker_findings(facts([job("long", lease=7200.0)], visibility=3600.0)))
    assert (found.level, found.name) == ("error", "visibility-timeout")
    assert "after 3600 s" in found.says and "job long" in found.says and "sqlbeat_lock_timeout" not in found.says
    assert '"visibility_timeout": 14400' in found.remedy
    assert "sqlbeat_lock_timeout" in only(installation.broker_findings(facts(visibility=60.0))).says
    assert list(installation.broker_findings(facts(visibility=None))) == []


def test_a_scheduled_task_with_a_strategy_of_its_own_is_named() -> None:
    told = process(id="w@a/2", kind="worker", queues=("celery",), unleasable=("shop.add", "shop.unscheduled"))
    found = only(workers.findings(facts([job()], [process(), told])))
    assert (found.level, found.name) == ("warning", "unleasable")
    assert "shop.add" in found.says and "shop.unscheduled" not in found.says
    gone = dataclasses.replace(told, state="stopped")
    assert "unleasable" not in {each.name for each in workers.findings(facts([job()], [process(), gone]))}


def test_a_worker_without_the_extension_is_an_error() -> None:
    found = only(workers.findings(facts([job()], answers=[answer(), Answer("plain@b", frozenset({"celery"}), None)])))
    assert (found.level, found.name) == ("error", "extension")
    assert "plain@b" in found.says and "w@a" not in found.says


def test_a_worker_that_serves_none_of_our_queues_is_its_own_affair() -> None:
    plain = Answer("plain@b", frozenset({"theirs"}), None)
    assert list(workers.findings(facts([job()], answers=[answer(), plain]))) == []
    assert only(workers.findings(facts([job(queue=None)], answers=[plain]))).name == "extension"
    assert only(workers.findings(facts([job()], answers=[plain], is_complete=False))).name == "extension"


@pytest.mark.parametrize(
    ("extension", "name", "says"),
    [
        ({"store": "store-2"}, "store", "on another database"),
        ({"store": None}, "store", "have not reached their database"),
        ({"namespace": "other"}, "namespace", "w@a (other)"),
    ],
)
def test_a_worker_on_another_store_or_namespace_is_an_error(extension: dict[str, Any], name: str, says: str) -> None:
    found = only(workers.findings(facts([job()], answers=[answer(**extension)])))
    assert (found.level, found.name) == ("error", name)
    assert says in found.says


def test_a_namespace_without_a_living_beat_is_a_warning() -> None:
    found = only(workers.findings(facts(processes=[process(state="silent"), WORKER])))
    assert (found.level, found.name) == ("warning", "beats")


def test_a_queue_that_nobody_consumes_is_a_warning() -> None:
    found = only(workers.findings(facts([job(), job("b", queue="slow"), job("c", queue=None)])))
    assert (found.level, found.name) == ("warning", "queues")
    assert "-Q slow" in found.remedy
    assert list(workers.findings(facts([job("b", queue="slow")], answers=[answer("w@a", "slow")]))) == []


def test_a_beat_on_another_broker_is_an_error() -> None:
    found = only(workers.findings(facts(processes=[process(broker="amqp//mq:5672//"), WORKER])))
    assert (found.level, found.name) == ("error", "brokers")
    assert "amqp//mq:5672//" in found.says
    same = process(broker="redis//other-name:6379/0")
    assert list(workers.findings(facts(processes=[same, WORKER]))) == []


def test_each_job_that_is_set_aside_is_told_with_its_reason() -> None:
    found = only(jobs.row_findings(facts(quarantined={"bad": "Args = 'x': write a JSON array"})))
    assert (found.level, found.name) == ("error", "quarantine")
    assert "job bad is set aside: Args = 'x'" in found.says and "jobs put bad" in found.remedy


def test_a_thousand_jobs_set_aside_are_not_a_thousand_findings() -> None:
    found = list(jobs.row_findings(facts(quarantined={f"job-{at}": "why" for at in range(1000)})))
    assert len(found) == jobs.MOST_ROWS + 1
    assert "980 more" in found[-1].says


def test_a_task_that_nobody_has_is_an_error_once() -> None:
    found = only(jobs.row_findings(facts([job("a", "shop.gone"), job("b", "shop.gone"), job("c")])))
    assert (found.level, found.name) == ("error", "tasks")
    assert "shop.gone of a, b" in found.says


def test_a_task_that_only_a_worker_has_is_known() -> None:
    assert list(jobs.row_findings(facts([job("a", "theirs.task")], registered_tasks=frozenset({"theirs.task"})))) == []


def test_a_check_that_ran_out_of_time_says_how_far_it_came() -> None:
    found = only(jobs.row_findings(facts([job()], is_complete=False)))
    assert found.level == "note" and "first 1 jobs" in found.says


def test_what_differs_from_stock_is_a_note_with_the_line_that_restores_it() -> None:
    policies = {
        "plain": Policy(),
        "as before": Policy(overlap="allow", max_retries=0),
        "allowed": Policy(overlap="allow"),
    }
    waits, retries = jobs.code_findings(facts(policies=policies))
    assert {waits.level, retries.level} == {"note"} and {waits.name, retries.name} == {"stock"}
    assert "(overlap): plain" in waits.says and "allowed" not in waits.says
    assert "(max_retries): plain, allowed" in retries.says
    assert 'sqlbeat_policies = {"*": {"overlap": "allow", "max_retries": 0}}' in waits.remedy


def test_an_entry_that_is_left_out_is_an_error() -> None:
    found = only(jobs.code_findings(facts(problems=[EntryProblem("bad", "Schedule = 0: no")])))
    assert (found.level, found.name, found.says) == (
        "error",
        "beat-schedule",
        "entry bad is left out: Schedule = 0: no",
    )


def test_a_certificate_that_cannot_be_verified_is_told_from_a_server_that_is_not_there() -> None:
    text = "[08001] [Microsoft][ODBC Driver 18 for SQL Server]SSL Provider: [certificate verify failed] (-1)"
    found = installation.error_finding(DatabaseUnavailable(text), database_url("mssql://u:s3kr1t@h/d"))
    assert "trust the server's certificate" in found.remedy and "start it" not in found.remedy


@pytest.mark.parametrize(
    ("error", "name", "remedy"),
    [
        (DriverMissing('the driver is not installed (x): run pip install "y"'), "driver", 'run pip install "y"'),
        (
            SchemaError("the tables are not there yet: run celery -A app sqlbeat init"),
            "schema",
            "run celery -A app sqlbeat init",
        ),
        (MigrationChanged(1, "a" * 64, "b" * 64), "schema", "restore the released file"),
        (DatabaseUnavailable("the database cannot be used for now"), "database", "start it"),
        (DatabaseUnavailable("for now: no access token for the database: AzureError: x"), "database", "az login"),
        (StoreError("permission denied"), "database", "rights"),
    ],
)
def test_an_error_of_the_database_is_a_finding_with_a_remedy(error: StoreError, name: str, remedy: str) -> None:
    found = installation.error_finding(error, database_url("postgresql://u:s3kr1t@h/d"))
    assert (found.level, found.name) == ("error", name)
    assert "s3kr1t" not in found.remedy and ("postgresql://u:***@h/d" in found.remedy) == (name == "database")
    assert remedy in found.remedy
    assert found.says


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mssql://host/db", None),
        ("mssql://host/db?Driver=ODBC%20Driver%2018%20for%20SQL%20Server", None),
        ("mssql+odbc:Driver={ODBC Driver 17 for SQL Server};Server=x", None),
        ("mssql+odbc:Driver=/opt/lib/libmsodbcsql-18.5.so.1.1;Server=x", None),
        ("mssql+odbc:Driver={FreeTDS};Server=x", "FreeTDS"),
        ("mssql+odbc:Driver={SQL Server};Server=x", "SQL Server"),
        ("mssql+odbc:Driver={ODBC Driver 13 for SQL Server};Server=x", "ODBC Driver 13"),
        ("sqlite:///x.db", None),
        ("postgresql://host/db", None),
    ],
)
def test_another_vendors_driver_is_an_error(url: str, named: str | None) -> None:
    found = list(installation.driver_findings(database_url(url)))
    assert [one.name for one in found] == (["driver"] if named else [])
    if named:
        assert named in found[0].says


def test_a_driver_that_is_too_old_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sqlbeat.checks.installation.metadata.version", lambda _: "3.0.18")
    found = only(installation.driver_findings(database_url("postgresql://host/db")))
    assert "psycopg 3.0.18 is too old, it must be 3.2 or later" in found.says
    assert "celery-sqlbeat[postgresql]" in found.remedy


def release(owner: str = "shop", name: str = "v1", entries: str = "a") -> LivingRelease:
    return LivingRelease(owner, name, f"beat@{owner}", NOON, dict.fromkeys(entries, ""))


def test_two_apps_or_two_schedules_in_one_namespace_are_an_error() -> None:
    assert list(jobs.app_findings(facts(living=[release(), release(name="v2")]))) == []
    (found,) = jobs.app_findings(facts(living=[release("office"), release()]))
    assert (found.level, found.name) == ("error", "apps") and "shop and office" in found.says
    assert 'sqlbeat_namespace = "shop"' in found.remedy
    (found,) = jobs.app_findings(facts(living=[release(), release(name="v2", entries="ab")]))
    assert (found.level, found.name) == ("error", "releases") and "b" in found.says


def test_jobs_that_no_living_beat_claims_are_an_error() -> None:
    theirs = [replace(job(), owner="old")]
    assert list(jobs.app_findings(facts(theirs))) == []
    (found,) = jobs.app_findings(facts(theirs, living=[release()]))
    assert found.level == "error" and "jobs adopt --owner old" in found.remedy


def test_entries_whose_names_another_app_has_are_an_error() -> None:
    theirs = [replace(job(), owner="office")]
    (found,) = jobs.app_findings(facts(theirs, policies={"a": Policy()}, living=[release(), release("office")][1:]))
    assert found.level == "error" and "entries of shop are left out" in found.says


def test_a_task_id_in_the_options_is_replaced_and_that_is_said() -> None:
    found = facts([replace(job(), has_task_id=True)])
    notes = [one for one in jobs.code_findings(found) if "task_id" in one.says]
    assert [(one.level, "a" in one.says) for one in notes] == [("note", True)]


def test_workers_of_one_queue_that_lack_each_others_tasks_are_an_error() -> None:
    def found(*workers: set[str]) -> list[Finding]:
        gathered = facts([job("a", "shop.a"), job("b", "office.b"), job("c", "other.c", queue="else")])
        assert gathered.database is not None
        worker_tasks = [WorkerTasks(frozenset({"celery"}), frozenset(tasks)) for tasks in workers]
        return list(
            jobs.app_findings(replace(gathered, database=replace(gathered.database, worker_tasks=worker_tasks)))
        )

    assert found({"shop.a", "office.b"}, {"shop.a"}) == found({"shop.a"}, set()) == found() == []
    (one,) = found({"shop.a", "x"}, {"office.b"})
    assert (one.level, one.name) == ("error", "apps") and "shop.a, others office.b" in one.says
    assert 'sqlbeat_namespace = "shop"' in one.remedy and 'task_default_queue = "shop"' in one.remedy

"""Settings are read once from the configuration and the environment, and a bad one is named."""

import dataclasses
import logging
import types
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat.config.policy import policy_for
from celery_sqlbeat.config.settings import NAMES, Settings, read_settings, stop_timeout
from celery_sqlbeat.errors import SettingError


def test_the_defaults_are_those_of_the_contract_and_pass_their_own_checks() -> None:
    settings = read_settings({}, {})
    assert str(settings.database_url) == "sqlite:///sqlbeat.db"
    assert dataclasses.asdict(settings) | {"database_url": None, "policies": None} == {
        "database_url": None,
        "namespace": "default",
        "release": None,
        "poll_interval": 60,
        "notice_interval": 5,
        "lock_timeout": 120,
        "heartbeat_interval": 30,
        "heartbeat_failures": 3,
        "dispatch_timeout": 15,
        "worker_memory": 3600,
        "unknown_task_timeout": 3600,
        "batch_size": 500,
        "republish": "auto",
        "max_retries": 3,
        "max_lost_leases": 5,
        "retry_base": 2,
        "retry_factor": 2,
        "retry_max": 600,
        "retry_strategy": "exponential",
        "schedules": (),
        "claim_order": "oldest",
        "history_days": 7,
        "policies": None,
        "allowed_tasks": ("*",),
        "max_payload": 262_144,
        "payload_key": None,
        "durable_eta": None,
        "create_tables": None,
        "redis_replicas": 0,
    }
    assert settings == Settings(policies=settings.policies)


def test_settings_come_from_the_app_and_the_environment_wins() -> None:
    app = Celery("shop", set_as_current=False, broker="memory://")
    app.conf.update(sqlbeat_namespace="app", sqlbeat_lock_timeout=timedelta(minutes=5), sqlbeat_batch_size=10)
    settings = read_settings(app.conf, {"SQLBEAT_NAMESPACE": "env", "SQLBEAT_BATCH_SIZE": " 20 "})
    assert (settings.namespace, settings.lock_timeout, settings.batch_size) == ("env", 300.0, 20)


def test_an_empty_variable_is_none() -> None:
    assert read_settings({"sqlbeat_namespace": "app"}, {"SQLBEAT_NAMESPACE": " "}).namespace == "app"


def test_every_setting_can_be_given_by_the_environment() -> None:
    texts = {
        "SQLBEAT_DATABASE_URL": "postgresql://host/shop",
        "SQLBEAT_NAMESPACE": "shop",
        "SQLBEAT_RELEASE": "2027-01",
        "SQLBEAT_POLL_INTERVAL": "30.5",
        "SQLBEAT_NOTICE_INTERVAL": "0",
        "SQLBEAT_LOCK_TIMEOUT": "60",
        "SQLBEAT_HEARTBEAT_INTERVAL": "10",
        "SQLBEAT_HEARTBEAT_FAILURES": "4",
        "SQLBEAT_DISPATCH_TIMEOUT": "5",
        "SQLBEAT_WORKER_MEMORY": "0",
        "SQLBEAT_UNKNOWN_TASK_TIMEOUT": "60",
        "SQLBEAT_BATCH_SIZE": "1000",
        "SQLBEAT_REPUBLISH": "never",
        "SQLBEAT_MAX_RETRIES": "0",
        "SQLBEAT_MAX_LOST_LEASES": "0",
        "SQLBEAT_RETRY_BASE": "1e1",
        "SQLBEAT_RETRY_FACTOR": "1.5",
        "SQLBEAT_RETRY_MAX": "10",
        "SQLBEAT_RETRY_STRATEGY": "linear",
        "SQLBEAT_SCHEDULES": '{"fiscal": "shop.fiscal.read"}',
        "SQLBEAT_CLAIM_ORDER": "shop.orders.loudest",
        "SQLBEAT_HISTORY_DAYS": "0.5",
        "SQLBEAT_POLICIES": '{"payroll*": {"overlap": "allow"}}',
        "SQLBEAT_ALLOWED_TASKS": "billing.*, report",
        "SQLBEAT_MAX_PAYLOAD": "1000",
        "SQLBEAT_PAYLOAD_KEY": "file:/run/secrets/payload-key",
        "SQLBEAT_DURABLE_ETA": "900",
        "SQLBEAT_CREATE_TABLES": "off",
        "SQLBEAT_REDIS_REPLICAS": "1",
    }
    assert {name.lower() for name in texts} == set(NAMES)
    settings = read_settings({}, texts)
    assert (settings.database_url.name, settings.retry_base, settings.create_tables) == ("shop", 10.0, False)
    assert policy_for("payroll-eu", settings.policies).overlap == "allow"


def test_a_django_style_prefix_is_understood() -> None:
    module = types.ModuleType("django_like_settings")
    module.__dict__.update(CELERY_BROKER_URL="memory://", CELERY_SQLBEAT_BATCH_SIZE=7)
    app = Celery("shop", set_as_current=False)
    app.config_from_object(module, namespace="CELERY")
    assert read_settings(app.conf, {}).batch_size == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sqlbeat_namespace", ""),
        ("sqlbeat_namespace", " a"),
        ("sqlbeat_namespace", "a\nb"),
        ("sqlbeat_namespace", "x" * 101),
        ("sqlbeat_namespace", None),
        ("sqlbeat_release", 5),
        ("sqlbeat_poll_interval", 0),
        ("sqlbeat_poll_interval", "60"),
        ("sqlbeat_poll_interval", True),
        ("sqlbeat_poll_interval", None),
        ("sqlbeat_poll_interval", float("nan")),
        ("sqlbeat_poll_interval", float("inf")),
        ("sqlbeat_poll_interval", 10**400),
        pytest.param("sqlbeat_poll_interval", 10**5000, id="too long to print"),
        ("sqlbeat_notice_interval", -0.1),
        ("sqlbeat_lock_timeout", timedelta(seconds=-5)),
        ("sqlbeat_lock_timeout", timedelta.max),
        ("sqlbeat_heartbeat_interval", 0),
        ("sqlbeat_heartbeat_failures", 0),
        ("sqlbeat_heartbeat_failures", 1.5),
        ("sqlbeat_dispatch_timeout", -1),
        ("sqlbeat_batch_size", 0),
        ("sqlbeat_batch_size", 1001),
        ("sqlbeat_batch_size", "500"),
        ("sqlbeat_max_retries", -1),
        ("sqlbeat_max_lost_leases", True),
        ("sqlbeat_retry_factor", 0.5),
        ("sqlbeat_history_days", 0),
        ("sqlbeat_create_tables", 1),
        ("sqlbeat_policies", None),
        ("sqlbeat_allowed_tasks", "billing.*"),
        ("sqlbeat_allowed_tasks", []),
        ("sqlbeat_max_payload", 0),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(name: str, value: object) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings({name: value}, {})
    assert caught.value.name == name
    assert str(caught.value).startswith(f"{name} = ")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SQLBEAT_POLL_INTERVAL", "2m"),
        ("SQLBEAT_POLL_INTERVAL", "nan"),
        ("SQLBEAT_POLL_INTERVAL", "-1"),
        ("SQLBEAT_BATCH_SIZE", "5.0"),
        ("SQLBEAT_BATCH_SIZE", "9" * 5000),
        ("SQLBEAT_CREATE_TABLES", "perhaps"),
        ("SQLBEAT_POLICIES", "{"),
        ("SQLBEAT_POLICIES", "[" * 100_000),
    ],
)
def test_a_bad_variable_is_refused_by_its_own_name(name: str, text: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings({}, {name: text})
    assert caught.value.name == name


def test_a_setting_that_does_not_exist_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingError, match="did you mean sqlbeat_lock_timeout"):
        read_settings({"sqlbeat_lock_timout": 5}, {})


def test_a_setting_in_a_case_that_celery_does_not_read_is_refused() -> None:
    with pytest.raises(SettingError, match="write sqlbeat_batch_size"):
        read_settings({"SQLBEAT_BATCH_SIZE": 5}, {})
    module = types.ModuleType("django_like_settings")
    module.__dict__.update(CELERY_BROKER_URL="memory://", CELERY_sqlbeat_batch_size=7)
    app = Celery("shop", set_as_current=False)
    app.config_from_object(module, namespace="CELERY")
    with pytest.raises(SettingError, match="CELERY_SQLBEAT_BATCH_SIZE"):
        read_settings(app.conf, {})


def test_a_mistyped_variable_is_warned_of_and_a_foreign_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read_settings({}, {"SQLBEAT_PORT_80_TCP": "tcp://10.0.0.1:80", "SQLBEAT_REQUIRE": "mssql"})
        assert not caplog.messages
        read_settings({}, {"SQLBEAT_DATABSE_URL": "postgresql://u:s3kr1t@h/d"})
    assert "did you mean SQLBEAT_DATABASE_URL?" in caplog.text
    assert "s3kr1t" not in caplog.text


@pytest.mark.parametrize(
    "conf",
    [
        {"sqlbeat_heartbeat_interval": 40},
        {"sqlbeat_heartbeat_failures": 4},
        {"sqlbeat_lock_timeout": 90},
        {"sqlbeat_lock_timeout": 105},  # 90 for the heartbeats, 5 for the statement, 10 to stop the task
    ],
)
def test_heartbeats_that_do_not_fit_into_the_lease_are_refused(conf: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="sqlbeat_heartbeat_interval") as caught:
        read_settings(conf, {})
    assert caught.value.name == "sqlbeat_lock_timeout"


def test_a_lease_with_room_for_the_statement_and_the_stop_is_accepted() -> None:
    settings = read_settings({"sqlbeat_lock_timeout": 105.1}, {})
    assert (settings.statement_timeout, settings.stop_timeout) == (5.0, 10.0)
    short = read_settings({"sqlbeat_lock_timeout": 1, "sqlbeat_heartbeat_interval": 0.2}, {})
    assert short.statement_timeout < 0.2
    assert short.stop_timeout == stop_timeout(1) == 0.1


def test_a_policy_may_have_a_shorter_lease_than_the_heartbeats_of_the_setting() -> None:
    settings = read_settings({"sqlbeat_policies": {"quick": {"lock_timeout": 1}}}, {})
    assert policy_for("quick", settings.policies).lock_timeout == 1.0


def test_the_first_wait_before_a_retry_is_no_longer_than_the_longest() -> None:
    with pytest.raises(SettingError, match="at most sqlbeat_retry_max"):
        read_settings({"sqlbeat_retry_base": 10, "sqlbeat_retry_max": 9}, {})


def test_tables_are_created_on_sqlite_only_unless_asked_for() -> None:
    assert read_settings({}, {}).creates_tables
    postgresql = {"sqlbeat_database_url": "postgresql://host/shop"}
    assert not read_settings(postgresql, {}).creates_tables
    assert read_settings(postgresql | {"sqlbeat_create_tables": True}, {}).creates_tables
    assert not read_settings({"sqlbeat_create_tables": False}, {}).creates_tables


@pytest.mark.parametrize("name", ["sqlbeat_database_url", "sqlbeat_databse_url", "sqlbeat_poll_interval"])
@pytest.mark.parametrize("url", ["postgresql://u:s3kr1t@h/d/e", "mssql+odbc:PWD=s3kr1t;", "mysql://u:s3kr1t@h/d/e"])
def test_no_error_shows_the_secret_of_a_url(name: str, url: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings({name: url}, {})
    assert "s3kr1t" not in f"{caught.value} {caught.value!r} {caught.value.value}"


def test_settings_are_shown_without_the_secret_of_the_url() -> None:
    settings = read_settings({"sqlbeat_database_url": "postgresql://u:s3kr1t@h/d"}, {})
    assert "s3kr1t" not in f"{settings} {settings!r} {settings.database_url}"

"""What the errors of Redis mean, what `check` says of a server, and how stores are opened."""

from importlib import metadata
from typing import Any

import pytest
import redis

from celery_sqlbeat.config import database_url as addresses
from celery_sqlbeat.config.settings import Settings, read_settings
from celery_sqlbeat.errors import SettingError, StoreError
from celery_sqlbeat.store import open_store
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.redis.faults import fault_of, moved_to, told
from celery_sqlbeat.store.redis.remarks import remarks


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), Fault.LOST),
        (redis.ReadOnlyError("You can't write against a read only replica."), Fault.LOST),
        (redis.ResponseError("READONLY You can't write. script: 12, on @user_script:3."), Fault.LOST),
        (redis.ResponseError("MASTERDOWN Link with MASTER is down"), Fault.LOST),
        (redis.ResponseError("CLUSTERDOWN Hash slot not served"), Fault.LOST),
        (redis.ResponseError("MOVED 7 10.0.0.1:6379"), Fault.LOST),
        (redis.ResponseError("ASK 7 10.0.0.1:6379"), Fault.TRANSIENT),
        (redis.ResponseError("TRYAGAIN Multiple keys request during rehashing of slot"), Fault.TRANSIENT),
        (redis.ResponseError("BUSY Redis is busy running a script"), Fault.TRANSIENT),
        (redis.ResponseError("OOM command not allowed when used memory > 'maxmemory'."), Fault.THROTTLED),
        (redis.ResponseError("Error running script: @user_script: 9: -OOM command not allowed"), Fault.THROTTLED),
        (redis.ResponseError("command not allowed when used memory > 'maxmemory'."), Fault.THROTTLED),
        (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), Fault.THROTTLED),
        (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), Fault.THROTTLED),
        (redis.AuthenticationError("Authentication required."), Fault.FATAL),
        (redis.ResponseError("WRONGPASS invalid username-password pair or user is disabled."), Fault.FATAL),
        (redis.exceptions.NoPermissionError("User x has no permissions to run the 'evalsha' command"), Fault.FATAL),
        (redis.ResponseError("WRONGTYPE Operation against a key"), Fault.FATAL),
        (redis.ConnectionError("Error 111 connecting to 10.0.0.1:6379. Connection refused."), Fault.LOST),
        (redis.TimeoutError("Timeout reading from socket"), Fault.LOST),
        (redis.ResponseError("what a proxy says"), Fault.UNKNOWN),
        (ValueError("ours"), Fault.FATAL),
    ],
    ids=lambda value: str(value)[:24] if isinstance(value, BaseException) else value.value,
)
def test_an_error_has_its_class(error: BaseException, fault: Fault) -> None:
    assert fault_of(error) is fault


def test_a_full_server_is_told_in_words() -> None:
    error = redis.ResponseError("OOM command not allowed when used memory > 'maxmemory'.")
    assert told(error).startswith("the server has no memory left within its maxmemory: OOM")


@pytest.mark.parametrize(
    ("text", "address"),
    [("MOVED 7 10.0.0.1:7000", ("10.0.0.1", 7000)), ("MOVED 7 :7001", ("here", 7001)), ("MOVED 7 [::1]:7", ("::1", 7))],
)
def test_a_node_of_a_cluster_says_where_to_go(text: str, address: tuple[str, int]) -> None:
    elsewhere = moved_to(redis.ResponseError(text), "here")
    assert elsewhere is not None
    assert (elsewhere.host, elsewhere.port) == address
    assert moved_to(redis.ResponseError("ERR no"), "here") is None


def server(connected: int = 0, **settings: str) -> Any:
    safe = {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always"}
    values = safe | {name.replace("_", "-"): value for name, value in settings.items()}

    def ask(*words: str) -> Any:
        if words[0] == "CONFIG":
            return [words[2].encode(), values[words[2]].encode()]
        return f"# Replication\r\nrole:master\r\nconnected_slaves:{connected}\r\n".encode()

    return ask


def test_nothing_is_said_of_a_server_that_loses_nothing() -> None:
    assert remarks(server(), 0) == []
    assert remarks(server(connected=1), 1) == []


@pytest.mark.parametrize(
    ("ask", "replicas", "level", "says"),
    [
        (server(maxmemory_policy="allkeys-lru"), 0, "error", "maxmemory-policy is allkeys-lru"),
        (server(appendonly="no"), 0, "warning", "since the last snapshot"),
        (server(appendfsync="everysec"), 0, "note", "about a second"),
        (server(appendfsync="no"), 0, "warning", "about 30 seconds"),
        (server(connected=2), 0, "note", "a fail-over loses the last ones"),
        (server(connected=1), 2, "error", "2 replicas have it, but 1 are connected"),
    ],
)
def test_what_a_server_may_lose_is_said(ask: Any, replicas: int, level: str, says: str) -> None:
    [remark] = remarks(ask, replicas)
    assert remark.level == level
    assert says in remark.text


def test_where_a_user_may_not_ask_that_is_said() -> None:
    def refuse(*_: str) -> Any:
        raise StoreError("no permissions to run the 'config|get' command")

    assert [remark.level for remark in remarks(refuse, 0)] == ["note", "note"]


class Point:
    """An entry point of another package."""

    name = "mystore"

    def __init__(self, factory: Any) -> None:
        self._factory = factory

    def load(self) -> Any:
        if isinstance(self._factory, Exception):
            raise self._factory
        return self._factory


def test_a_store_of_another_package_is_opened_by_its_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Settings] = []
    monkeypatch.setattr(metadata, "entry_points", lambda group: [Point(opened.append)] if "stores" in group else [])
    settings = read_settings({"sqlbeat_database_url": "mystore://user:s3kr1t@host/x?y=1"}, {})
    open_store(settings)
    assert opened == [settings]
    assert str(settings.database_url) == "mystore://user:***@host/x?***"
    assert settings.database_url.text == "mystore://user:s3kr1t@host/x?y=1"
    with pytest.raises(SettingError, match=r"as sqlite://, .*redis://, rediss://, memory://, mystore:// are"):
        addresses.database_url("nosuch://host")


def test_a_store_whose_package_is_broken_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [Point(ImportError("no\nmodule"))])
    with pytest.raises(StoreError, match=r"mystore of celery_sqlbeat.stores cannot be loaded \(ImportError: no module"):
        open_store(read_settings({"sqlbeat_database_url": "mystore://host"}, {}))


def test_a_store_in_memory_says_that_nobody_else_sees_it(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(read_settings({"sqlbeat_database_url": "memory://said"}, {}))
    assert "memory://said is in the memory of this process" in caplog.text
    assert store.check_schema().store_id

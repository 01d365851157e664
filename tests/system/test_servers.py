"""A server that is not there skips a test, and fails it where it is required."""

import os
import subprocess
import sys

import pytest

from tests import conftest, servers
from tests.conftest import is_left_behind, new_name
from tests.servers import required, server


def test_the_required_servers_are_a_list_of_names() -> None:
    assert required({}) == frozenset()
    assert required({"SQLBEAT_REQUIRE": " postgresql, redis,"}) == {"postgresql", "redis"}


def test_an_unknown_server_cannot_be_required() -> None:
    with pytest.raises(pytest.UsageError, match="postgres; the servers are postgresql"):
        required({"SQLBEAT_REQUIRE": "postgres"})


def test_a_server_that_is_away_skips_and_a_required_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLBEAT_TEST_REDIS", "redis://user:s3kr1t@127.0.0.1:1/0")
    monkeypatch.delenv("SQLBEAT_REQUIRE", raising=False)
    servers._reason_missing.cache_clear()
    with pytest.raises(pytest.skip.Exception, match=r"redis does not answer at 127\.0\.0\.1:1"):
        server("redis")
    monkeypatch.setenv("SQLBEAT_REQUIRE", "redis")
    with pytest.raises(pytest.fail.Exception, match="SQLBEAT_REQUIRE names it") as caught:
        server("redis")
    assert "s3kr1t" not in str(caught.value)
    servers._reason_missing.cache_clear()


def test_a_database_is_left_behind_when_the_run_that_made_it_is_dead() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    alive = new_name()
    assert not is_left_behind(alive)
    assert is_left_behind(alive.replace(f"_{os.getpid()}_", f"_{gone.pid}_"))
    assert is_left_behind(f"sqlbeat_test_{os.getpid()}_5f000000_00")
    elsewhere = alive[: -len(new_name().rpartition("_")[2])] + "ffff" + "0" * 8
    assert not is_left_behind(elsewhere.replace(f"_{os.getpid()}_", f"_{gone.pid}_")) or conftest._HOST == "ffff"
    assert not is_left_behind("sqlbeat_test_of_somebody")

"""What a block becomes for MySQL, what its errors mean, and how a connection is encrypted."""

import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pymysql
import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.faults import READ_ONLY, Fault
from celery_sqlbeat.store.sql.dialects.mysql import Mysql
from celery_sqlbeat.store.sql.dialects.mysql_text import has_several, literal, packet
from celery_sqlbeat.store.sql.session import blocks_in, load

URL = database_url("mysql://beat:s3cret-word@a,b:3307/shop")
MYSQL = Mysql(URL)
BLOCK = blocks_in(
    "-- name: mark\n-- parameters: a int, b list\n-- rows: job_id id, due_at instant\n"
    "SET @rows = %(rows)s;\nUPDATE t SET c = '100 %%' WHERE a = %(a)s AND b IN (%(b)s) AND d <> %(a)s;\n"
    "\nSELECT 1 AS c;\n"
)["mark"]
NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)


def test_a_block_is_one_text_with_its_values() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=2)))
    assert packet(BLOCK, [("x'", there), ("\\", None)], {"a": True, "b": ["k", "l"]}) == (
        """SET @rows = '[["x''","2027-03-01 12:00:00.000000"],["\\\\\\\\",null]]';\n"""
        "UPDATE t SET c = '100 %' WHERE a = 1 AND b IN ('k', 'l') AND d <> 1;\n\nSELECT 1 AS c"
    )
    assert has_several(BLOCK)
    assert not has_several(load("mysql")["raise_fence_floor"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (False, "0"),
        (-7, "-7"),
        (0.5, "0.5"),
        (NOON, "'2027-03-01 12:00:00.000000'"),
        ("it's; -- \\", r"'it''s; -- \\'"),
        ([], "''"),
        (("a", "'"), "'a', ''''"),
    ],
)
def test_a_value_is_written_so_that_nothing_ends_its_text(value: Any, text: str) -> None:
    assert literal(value) == text


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (1213, Fault.DEADLOCK),
        (1205, Fault.TRANSIENT),
        (1969, Fault.TRANSIENT),
        (3024, Fault.TRANSIENT),
        (1040, Fault.THROTTLED),
        (1021, Fault.THROTTLED),
        (2006, Fault.LOST),
        (2013, Fault.LOST),
        (1053, Fault.LOST),
        (1290, Fault.LOST),
        (1836, Fault.LOST),
        (4031, Fault.LOST),
        (1062, Fault.CONFLICT),
        (1048, Fault.REFUSED),
        (1153, Fault.REFUSED),
        (1406, Fault.REFUSED),
        (1644, Fault.REFUSED),
        (3819, Fault.REFUSED),
        (4025, Fault.REFUSED),
        (1045, Fault.FATAL),
        (1049, Fault.FATAL),
        (1146, Fault.FATAL),
        (9999, Fault.UNKNOWN),
    ],
)
def test_errors_are_classified_by_their_number(number: int, fault: Fault) -> None:
    assert MYSQL.classify(pymysql.OperationalError(number, "text")) is fault


def test_an_error_that_no_list_has_is_classified_by_its_sqlstate() -> None:
    error = pymysql.OperationalError(9999, "text")
    error.sqlstate = "23999"
    assert MYSQL.classify(error) is Fault.REFUSED
    assert MYSQL.classify(pymysql.InterfaceError(0, "")) is Fault.LOST
    assert MYSQL.classify(ValueError()) is Fault.FATAL


def test_an_error_is_told_in_one_line_without_the_password() -> None:
    told = MYSQL.explain(pymysql.OperationalError(1045, "no entry for\nbeat:s3cret-word"))
    assert told == "no entry for beat:*** (error 1045)"


class Server(pymysql.Connection):
    """A connection to a server that is nowhere."""

    def __init__(self, version: str, read_only: int, **given: Any) -> None:
        self.version, self.read_only, self.given, self.is_open = version, read_only, given, True

    @property
    def open(self) -> bool:
        return self.is_open

    def close(self) -> None:
        self.is_open = False

    def get_server_info(self) -> str:
        return self.version

    def get_host_info(self) -> str:
        return f"socket {self.given['host']}:{self.given['port']}"

    def cursor(self, _: Any = None) -> Any:
        server = self

        class Cursor:
            description = ("columns",)

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def execute(self, text: str) -> None:
                server.given["settings"] = text

            def fetchall(self) -> Any:
                return ((server.read_only, 1000),)

            def nextset(self) -> bool:
                return False

        return Cursor()


def dialect(url: str, *servers: tuple[str, int]) -> tuple[Mysql, list[Server]]:
    made: list[Server] = []

    def connect(**given: Any) -> Any:
        made.append(Server(*servers[len(made)], **given))
        return made[-1]

    return Mysql(database_url(url), 2.0, connect=connect), made


def test_of_several_hosts_the_one_that_can_be_written_to_is_taken() -> None:
    some, made = dialect("mysql://beat@a,b:3307/shop", ("8.0.36", 1), ("8.0.36", 0))
    session = some.connect()
    assert [(each.given["host"], each.given["port"], each.open) for each in made] == [
        ("a", 0, False),
        ("b", 3307, True),
    ]
    assert "max_execution_time = 2000" in made[1].given["settings"]
    with pytest.raises(pymysql.DataError, match="longer than max_allowed_packet, 1000 bytes"):
        session.script("SELECT '" + "x" * 1000 + "'")


def test_a_replica_is_refused_with_its_host() -> None:
    some, made = dialect("mysql://beat@a/shop", ("5.5.5-10.11.19-MariaDB", 1))
    with pytest.raises(
        pymysql.OperationalError, match=f"the server at socket a:0 {READ_ONLY}: it is a replica"
    ) as caught:
        some.connect()
    assert some.classify(caught.value) is Fault.LOST
    assert not made[0].open


@pytest.mark.parametrize("version", ["8.0.18", "5.5.5-10.5.20-MariaDB-log"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    some, made = dialect("mysql://beat@a/shop", (version, 0))
    with pytest.raises(StoreError, match=r"too old: use MySQL 8\.0\.19 or MariaDB 10\.6\.0, or later"):
        some.connect()
    assert not made[0].open


@pytest.mark.parametrize(
    ("query", "checks_host", "checks"),
    [
        ("ssl_mode=required", False, ssl.CERT_NONE),
        ("ssl_mode=verify_ca", False, ssl.CERT_REQUIRED),
        ("ssl_mode=verify_identity", True, ssl.CERT_REQUIRED),
        ("ssl_ca={ca}", False, ssl.CERT_REQUIRED),
    ],
)
def test_certificates_are_checked_as_asked_for(query: str, checks_host: bool, checks: int) -> None:
    ca = ssl.get_default_verify_paths().cafile
    if ca is None or not Path(ca).exists():
        pytest.skip("this machine has no file of certificates")
    _, (made,) = connected(f"mysql://beat@a/shop?{query.format(ca=ca)}")
    assert (made.given["ssl"].check_hostname, made.given["ssl"].verify_mode) == (checks_host, checks)


def test_without_a_word_encryption_is_preferred_and_can_be_turned_off() -> None:
    _, (plain,) = connected("mysql://beat@a/shop")
    assert not plain.given.keys() & {"ssl", "ssl_disabled"}
    _, (off,) = connected("mysql://beat@a/shop?ssl_mode=disabled")
    assert off.given["ssl_disabled"] is True


def connected(url: str) -> tuple[Mysql, list[Server]]:
    some, made = dialect(url, ("8.0.36", 0))
    some.connect()
    return some, made

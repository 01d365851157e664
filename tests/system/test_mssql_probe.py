"""A port of SQL Server is asked before the driver: real sockets, and no server."""

import socket

import pytest

from celery_sqlbeat.config.database_url import DatabaseUrl, database_url
from celery_sqlbeat.store.sql.dialects.mssql import Mssql
from celery_sqlbeat.store.sql.dialects.mssql_probe import PortRefused, probe
from tests.support.fake_odbc import FakePyodbc


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def address(port: int) -> DatabaseUrl:
    return database_url(f"mssql+odbc:Server=tcp:127.0.0.1,{port};UID=sa;PWD=x")


def test_a_closed_port_is_told_without_the_driver() -> None:
    fake, port = FakePyodbc(), closed_port()
    with pytest.raises(PortRefused, match=f"refused by 127.0.0.1, port {port}"):
        Mssql(address(port), 60.0, pyodbc=fake, port_probe=probe).connect()
    assert fake.asked == []


def test_a_port_that_takes_connections_is_the_drivers() -> None:
    fake = FakePyodbc()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        Mssql(address(taken.getsockname()[1]), pyodbc=fake, port_probe=probe).connect().close()
    assert len(fake.asked) == 1


def test_a_port_that_stays_silent_is_the_drivers() -> None:
    """A full queue answers nothing, as a firewall does: only a refusal is evidence."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        probe(address(full.getsockname()[1]), 0.05)
        for client in waiting:
            client.close()


def test_a_host_that_nobody_knows_is_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be an alias of the driver's own configuration."""

    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    probe(database_url("mssql://alias/shop"), 1.0)


def test_one_address_of_the_host_that_listens_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [closed_port(), taken.getsockname()[1]]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in ports]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        probe(database_url("mssql://both/shop"), 1.0)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[:1])
        with pytest.raises(PortRefused):
            probe(database_url("mssql://both/shop"), 1.0)

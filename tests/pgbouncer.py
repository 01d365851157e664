"""A PgBouncer of a test's own before the PostgreSQL server of the tests."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg

from tests.servers import PGBOUNCER, server

_PATIENCE = 30.0  # seconds; far more than a start takes


class Pooler(NamedTuple):
    """A pooler that runs."""

    port: int
    mode: str

    def url(self, database_url: str) -> str:
        """Return the same database, behind the pooler."""
        parts = urllib.parse.urlsplit(database_url)
        return parts._replace(netloc=f"anybody@127.0.0.1:{self.port}").geturl()


@contextlib.contextmanager
def pgbouncer(folder: Path, mode: str, size: int = 20, **settings: str) -> Iterator[Pooler]:
    """Run one in a folder that is the test's own.

    `mode` is "transaction" or "session", `size` is that of each pool.
    """
    there = urllib.parse.urlsplit(server("postgresql"))
    program = shutil.which(server("pgbouncer")) or PGBOUNCER
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    password = f" password={urllib.parse.unquote(there.password)}" if there.password else ""
    given = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": mode,
        "default_pool_size": str(size),
        "max_client_conn": "1000",
        "server_round_robin": "1",  # so that whoever asks twice meets another one
        **settings,
    }
    config = folder / f"pgbouncer-{port}.ini"
    config.write_text(
        "[databases]\n"
        f"* = host={there.hostname or '127.0.0.1'} port={there.port or 5432} user={there.username}{password}\n"
        "[pgbouncer]\n" + "".join(f"{name} = {value}\n" for name, value in given.items())
    )
    as_whom = ["-u", "nobody"] if os.getuid() == 0 else []  # it refuses to run as root
    log = folder / f"pgbouncer-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen([program, *as_whom, str(config)], stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_for(port, process, log)
        yield Pooler(port, mode)
    finally:
        process.kill()
        process.wait(_PATIENCE)


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            psycopg.connect(f"postgresql://anybody@127.0.0.1:{port}/postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        else:
            return

"""The database of a storm, on a server or a small disk of its own."""

import contextlib
import subprocess
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

from tests import mariadb
from tests.support.private_servers import PrivateServer, private_mariadb, private_postgresql, private_redis

NAMES = ["mysql", "postgresql", "redis", "sqlite"]
_DISK = "512m"  # of the disk that runs full; an hour of history takes a tenth of it


def open_one(
    stack: contextlib.ExitStack,
    database: str,
    servers: dict[str, PrivateServer],
    folder: Path,
    tell: Callable[[str], None],
) -> tuple[str, Path | None]:
    """Start one; return its address, and the disk that can be filled where it lies on one.

    A server is added to the others, so that the storm restarts and kills it, too.
    """
    if database == "sqlite":
        disk = stack.enter_context(_small_disk(tell))
        return f"sqlite:///{(disk or folder) / 'beat.db'}", disk
    if database == "redis":  # not the one that may be the broker: each goes away by itself
        servers["database"] = stack.enter_context(private_redis())
        return servers["database"].url, None
    if database == "mysql":
        servers["database"] = stack.enter_context(private_mariadb())
        return mariadb.make(servers["database"].url, "storm"), None
    servers["database"] = stack.enter_context(private_postgresql())
    return _made(servers["database"]), None


def _made(server: PrivateServer) -> str:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE chaos")
    return urllib.parse.urlsplit(server.url)._replace(path="/chaos").geturl()


@contextlib.contextmanager
def _small_disk(tell: Callable[[str], None]) -> Iterator[Path | None]:
    """Yield a disk that can be filled, where this user may mount one."""
    with tempfile.TemporaryDirectory(prefix="sqlbeat_test_") as name:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "none", name], capture_output=True, text=True, check=False
        )
        if mounted.returncode != 0:
            tell(f"no disk runs full: {mounted.stderr.strip()}")
            yield None
            return
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)

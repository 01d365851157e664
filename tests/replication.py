"""Two PostgreSQL clusters of a test's own: a primary, and a standby that streams from it."""

import contextlib
import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.servers import postgresql_program, server

_PATIENCE = 120  # seconds; far more than any of this takes on a machine that is not busy
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
max_connections = 50
"""


class Replication:
    """A primary and its standby, on ports of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.primary, self.standby = _free_port(), _free_port()

    def url(self, *ports: int) -> str:
        """Return the address of the servers on these ports, in this order."""
        return f"postgresql://postgres@{','.join(f'127.0.0.1:{port}' for port in ports)}/postgres"

    def start(self) -> None:
        """Make both, and start them; a commit is on both before it is answered."""
        self._run("initdb", "-D", self._at("primary"), "-U", "postgres", "-A", "trust", "--no-sync")
        self._configure("primary", self.primary)
        self._control("primary", "start")
        from_primary = ("-h", "127.0.0.1", "-p", str(self.primary), "-U", "postgres")
        self._run("pg_basebackup", *from_primary, "-D", self._at("standby"), "-R", "--no-sync", "-c", "fast")
        self._configure("standby", self.standby)
        self._control("standby", "start")
        with psycopg.connect(self.url(self.primary), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """End the primary as a crash does, and make the standby the primary."""
        self._control("primary", "stop", "-m", "immediate")
        self._control("standby", "promote")

    def stop(self) -> None:
        """End what runs."""
        for name in ("standby", "primary"):
            with contextlib.suppress(subprocess.CalledProcessError):
                self._control(name, "stop", "-m", "immediate")

    def _at(self, name: str) -> str:
        return str(self._folder / name)

    def _configure(self, name: str, port: int) -> None:
        with (self._folder / name / "postgresql.conf").open("a") as file:
            file.write(f"{_SETTINGS}port = {port}\n")

    def _control(self, name: str, *what: str) -> None:
        self._run("pg_ctl", "-D", self._at(name), "-w", "-s", "-l", f"{self._at(name)}.log", *what)

    def _run(self, program: str, *arguments: str) -> None:
        command = [postgresql_program(program) or program, *arguments]
        if os.getuid() == 0:  # none of them runs as root
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
        subprocess.run(
            command,
            check=True,
            timeout=_PATIENCE,
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )


@contextlib.contextmanager
def replication() -> Iterator[Replication]:
    """Both, until the test is over; their folder is one that the server's own user may enter."""
    server("replication")
    folder = Path(tempfile.mkdtemp(prefix="sqlbeat_test_"))
    owner = pwd.getpwnam("postgres" if os.getuid() == 0 else getpass.getuser())
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    made = Replication(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])

"""Servers of a test's own, that it may stop and start again, where their programs are installed."""

import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kombu.connection
import psycopg
import pymysql
import pytest
import redis

from tests import mariadb
from tests.support.beats import wait_for

Connection: Any = kombu.connection.Connection  # kombu leaves it without types
_START = 60.0  # seconds; a new cluster is written first
_USER = "postgres"  # who runs PostgreSQL where the tests run as root, which it refuses


class PrivateServer:
    """One server on a port of its own; what it holds survives a restart, in order or by force."""

    def __init__(self, command: Sequence[str], url: str, log: Path, in_order: int = signal.SIGTERM) -> None:
        self._command, self.url, self._log, self._in_order = command, url, log, in_order
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, start_new_session=True)
        wait_for(self._answers, _START, self._log.read_text)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop it: SIGTERM in order, SIGKILL as a crash."""
        if number == signal.SIGTERM:
            number = self._in_order
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            try:
                self._process.wait(_START)
            except subprocess.TimeoutExpired:  # a last checkpoint may take its time on a disk with much to do
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(_START)

    def restart(self, number: int = signal.SIGTERM, pause: float = 0.0) -> None:
        """Stop it, and start it again after so many seconds."""
        self.stop(number)
        time.sleep(pause)
        self.start()

    def _answers(self) -> bool:
        try:
            if self.url.startswith("redis"):
                return bool(redis.Redis.from_url(self.url).ping())
            if self.url.startswith("amqp"):
                with Connection(self.url, connect_timeout=2) as connection:
                    connection.connect()
            elif self.url.startswith("mysql"):
                mariadb.connect(self.url).close()
            else:
                psycopg.connect(self.url, connect_timeout=2).close()
        except (psycopg.Error, pymysql.Error, redis.RedisError, OSError):
            return False
        return True


@contextlib.contextmanager
def private_postgresql() -> Iterator[PrivateServer]:
    """Yield a cluster in a folder of its own.

    Not in pytest's, which only the user of the tests may enter.
    """
    programs = _folder_of("postgres", "usr/lib/postgresql/*/bin")
    with tempfile.TemporaryDirectory(prefix="sqlbeat_test_") as name:
        folder, port = Path(name), free_port()
        command = dies_with_us()
        if getpass.getuser() == "root":  # which PostgreSQL refuses
            shutil.chown(folder, _USER)
            command += [f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
        data = str(folder / "data")
        made = subprocess.run(
            [*command, str(programs / "initdb"), "-D", data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        command += [str(programs / "postgres"), "-D", data, "-p", str(port), "-k", "", "-h", "127.0.0.1"]
        url = f"postgresql://{_USER}@127.0.0.1:{port}/postgres"
        # SIGTERM would wait until its clients have gone.
        yield from _running(PrivateServer(command, url, folder / "log", signal.SIGINT))


@contextlib.contextmanager
def private_mariadb(*options: str) -> Iterator[PrivateServer]:
    """Yield a MariaDB server in a folder of its own, where root has no password."""
    programs = _folder_of("mariadbd", "usr/sbin")
    with tempfile.TemporaryDirectory(prefix="sqlbeat_test_") as name:
        folder, port = Path(name), free_port()
        data, command = str(folder / "data"), dies_with_us()
        install = _folder_of("mariadb-install-db", "usr/bin") / "mariadb-install-db"
        common = ["--no-defaults", f"--datadir={data}", f"--user={getpass.getuser()}"]
        made = subprocess.run(
            [str(install), *common, "--skip-test-db", "--auth-root-authentication-method=normal"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        command += [str(programs / "mariadbd"), *common, f"--port={port}", "--bind-address=127.0.0.1"]
        command += [f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}", *options]
        url = f"mysql://root@127.0.0.1:{port}/mysql"
        yield from _running(PrivateServer(command, url, folder / "log"))


@contextlib.contextmanager
def private_redis(*options: str) -> Iterator[PrivateServer]:
    """Yield a Redis that writes every command to its file before it answers."""
    programs = _folder_of("redis-server", "usr/bin")
    with tempfile.TemporaryDirectory(prefix="sqlbeat_test_") as name:
        folder, port = Path(name), free_port()
        command = [*dies_with_us(), str(programs / "redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
        command += ["--dir", name, "--appendonly", "yes", "--appendfsync", "always", "--save", "", *options]
        yield from _running(PrivateServer(command, f"redis://127.0.0.1:{port}/0", folder / "log"))


@contextlib.contextmanager
def private_sentinel(primary: PrivateServer, down_after: float = 0.5) -> Iterator[PrivateServer]:
    """Yield a sentinel that alone decides when a replica becomes the primary, "shop".

    `down_after`: the seconds for which the primary is silent then.
    """
    programs = _folder_of("redis-server", "usr/bin")
    with tempfile.TemporaryDirectory(prefix="sqlbeat_test_") as name:
        folder, port = Path(name), free_port()
        watched = primary.url.removesuffix("/0").rpartition(":")[2]
        (folder / "sentinel.conf").write_text(
            f"port {port}\nbind 127.0.0.1\ndir {name}\nsentinel monitor shop 127.0.0.1 {watched} 1\n"
            f"sentinel down-after-milliseconds shop {1000 * down_after:.0f}\nsentinel failover-timeout shop 3000\n"
        )
        command = [*dies_with_us(), str(programs / "redis-server"), str(folder / "sentinel.conf"), "--sentinel"]
        yield from _running(PrivateServer(command, f"redis://127.0.0.1:{port}", folder / "log"))


@contextlib.contextmanager
def private_rabbitmq() -> Iterator[PrivateServer]:
    """Yield a RabbitMQ node; the little server that tells nodes of each other is the machine's."""
    programs = _folder_of("rabbitmqctl", "usr/lib/rabbitmq/bin")
    server = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on the path changes to a user of its own
    if not server.exists():
        server = programs / "rabbitmq-server"
    with tempfile.TemporaryDirectory(prefix="sqlbeat_test_") as name:
        folder, port = Path(name), free_port()
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.local = 127.0.0.1:{port}\n")
        (folder / "plugins").write_text("[].\n")
        names = {
            "HOME": folder,
            "RABBITMQ_CONFIG_FILE": folder / "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": folder / "none",
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_MNESIA_BASE": folder,
            "RABBITMQ_NODENAME": f"sqlbeat_test_{port}@localhost",
            "RABBITMQ_NODE_PORT": port,
            "RABBITMQ_PID_FILE": folder / "pid",
        }
        settings = [f"{key}={value}" for key, value in names.items()]
        yield from _running(
            PrivateServer(
                [*dies_with_us(), "env", *settings, str(server)],
                f"amqp://guest:guest@127.0.0.1:{port}//",
                folder / "log",
            )
        )


def dies_with_us() -> list[str]:
    """Return what starts a process that does not outlive a test run that is killed."""
    _folder_of("setpriv", "usr/bin")
    return ["setpriv", "--pdeathsig=KILL"]


def _running(server: PrivateServer) -> Iterator[PrivateServer]:
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGKILL)


def _folder_of(program: str, pattern: str) -> Path:
    on_path = shutil.which(program)
    found = [Path(on_path)] if on_path else sorted(Path("/").glob(f"{pattern}/{program}"))
    if not found:
        pytest.skip(f"{program} is not installed here, so that no server can be restarted")
    return found[-1].parent


def free_port() -> int:
    """Return a port below those that the system gives to connections.

    It must still be free when its server starts again.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port

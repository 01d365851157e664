"""Two MariaDB servers of a test's own: a primary, and a replica, read-only until promoted."""

import contextlib
import os
import shutil
import signal
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from tests import mariadb
from tests.servers import absent
from tests.support.beats import wait_for
from tests.support.private_servers import PrivateServer, private_mariadb

DATABASE, USER = "shop", "shop"  # the user is none that read_only lets through
_PATIENCE = 60  # seconds; far more than any of this takes on a machine that is not busy
# Who makes the triggers of the schema is no SUPER user, as docs/mysql.md says.
_COMMON = (
    "--log-bin=binlog",
    "--binlog-format=MIXED",
    "--gtid-strict-mode=1",
    "--innodb-flush-log-at-trx-commit=2",
    "--log-bin-trust-function-creators=1",
)
# A commit waits until the replica has it; AFTER_SYNC: nobody has seen what the replica lacks.
_WAITS = (
    "--rpl-semi-sync-master-enabled=1",
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
    "--rpl-semi-sync-master-timeout=3600000",
)


class MariadbReplication:
    """A primary and its replica, on ports of their own."""

    def __init__(self, primary: PrivateServer, replica: PrivateServer) -> None:
        self.primary, self.replica = primary, replica

    def url(self, *servers: PrivateServer) -> str:
        """Return the address of these servers, in this order."""
        hosts = ",".join(f"127.0.0.1:{port_of(each)}" for each in servers)
        return f"mysql://{USER}@{hosts}/{DATABASE}"

    def start(self) -> None:
        """Let the replica follow, and make the shop's database on both."""
        self.execute(
            self.replica,
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_USER = 'root', MASTER_USE_GTID = slave_pos, "
            f"MASTER_CONNECT_RETRY = 1, MASTER_PORT = {port_of(self.primary)}",
        )
        self.execute(self.replica, "START SLAVE")
        wait_for(lambda: self._status()["slave_io_running"] == "Yes", _PATIENCE, lambda: str(self._status()))
        self.execute(self.primary, f"CREATE DATABASE {DATABASE}")
        self.execute(self.primary, f"CREATE USER {USER}@'127.0.0.1'")
        self.execute(self.primary, f"GRANT ALL ON {DATABASE}.* TO {USER}@'127.0.0.1'")
        self.wait_until_applied()

    def promote(self) -> None:
        """Let the replica take writes, once it has applied what it has received."""
        self.execute(self.replica, "STOP SLAVE IO_THREAD")
        self.wait_until_applied()
        self.execute(self.replica, "STOP SLAVE")
        self.execute(self.replica, "RESET SLAVE ALL")
        self.execute(self.replica, "SET GLOBAL read_only = 0")

    def crash(self) -> None:
        """End the primary as a loss of power does."""
        self.primary.stop(signal.SIGKILL)

    def wait_until_applied(self) -> None:
        """Wait until the replica has applied all that it has received."""

        def is_applied() -> bool:
            [row] = self.execute(self.replica, "SELECT @@global.gtid_slave_pos AS applied")
            return bool(row["applied"] == self._status()["gtid_io_pos"])

        wait_for(is_applied, _PATIENCE, lambda: str(self._status()))

    def wait_for_all(self) -> None:
        """Wait until the replica has what the primary, which takes no writes, has committed."""
        [row] = self.execute(self.primary, "SELECT @@global.gtid_binlog_pos AS committed")
        wait_for(lambda: self._status()["gtid_io_pos"] == row["committed"], _PATIENCE, lambda: str(self._status()))

    def execute(self, where: PrivateServer, text: str) -> list[Mapping[str, Any]]:
        """Run a statement as root."""
        with contextlib.closing(mariadb.connect(where.url)) as administrator:
            return mariadb.execute(administrator, text)

    def _status(self) -> Mapping[str, Any]:
        [row] = self.execute(self.replica, "SHOW SLAVE STATUS")
        return row


def port_of(where: PrivateServer) -> int:
    """Return the port of a server."""
    return urllib.parse.urlsplit(where.url).port or 0


@contextlib.contextmanager
def mariadb_replication(loses: bool = False) -> Iterator[MariadbReplication]:
    """Yield both: semi-synchronous, which loses no commit that was answered, or asynchronous."""
    for program in ("mariadbd", "mariadb-install-db"):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin") is None:
            absent("replication", f"{program} is missing: run apt-get install mariadb-server")
    primary = private_mariadb("--server-id=1", *_COMMON, *(() if loses else _WAITS))
    replica = private_mariadb("--server-id=2", *_COMMON, "--read-only=1", "--rpl-semi-sync-slave-enabled=1")
    with primary as one, replica as other:
        made = MariadbReplication(one, other)
        made.start()
        yield made

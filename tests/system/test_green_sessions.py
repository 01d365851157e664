"""Under green threads a session waits in the event loop of its native thread, and is not moved."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests import mariadb
from tests.conftest import new_name
from tests.servers import server
from tests.support.private_servers import private_redis

_PROGRAM = """
{patch}
import sys, time
from celery_sqlbeat import environment
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.store import open_store

store = open_store(read_settings({{"sqlbeat_database_url": sys.argv[1]}}, {{}}))
store.migrate()
answers = []

def ask():
    try:
        answers.append(type(store.pulse().now).__name__)
    except BaseException as error:
        answers.append(repr(error))

original, ids = environment.original, set()
for _ in range(5):  # and the system gives an id again once its thread has ended
    lock = original("_thread", "allocate_lock")()
    lock.acquire()
    environment.start_thread(lambda: (ask(), ids.add(environment.thread_id()), lock.release()))
    lock.acquire()
    original("time", "sleep")(0.05)  # it ends just now
ask()
store.close()
print(*answers)
assert len(ids) < 5, "no id came again"
"""


@contextlib.contextmanager
def _database(kind: str) -> Iterator[str]:
    if kind == "redis":
        with private_redis() as made:
            yield made.url
        return
    where, name = server("mariadb"), new_name()
    url = mariadb.make(where, name)
    try:
        yield url
    finally:
        with contextlib.closing(mariadb.connect(where)) as administrator:
            mariadb.execute(administrator, f"DROP DATABASE {name}")


@pytest.mark.parametrize("kind", ["redis", "mysql"])
@pytest.mark.parametrize(
    "patch", ["from gevent import monkey; monkey.patch_all()", "import eventlet; eventlet.monkey_patch()"]
)
def test_native_threads_ask_one_after_the_other(kind: str, patch: str) -> None:
    with _database(kind) as url:
        program = _PROGRAM.format(patch=patch)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, url],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.stdout.split() == ["datetime"] * 6, done.stdout + done.stderr

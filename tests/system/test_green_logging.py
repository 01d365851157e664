"""What native threads log under green ones is written, and hangs nobody."""

import logging
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from celery_sqlbeat.celery_bridge.event_loop import Relay, relay_logs

CROWDED = """
import eventlet
eventlet.monkey_patch()
import io, logging, os, sys, time
from celery_sqlbeat import environment as native
from celery_sqlbeat.celery_bridge.event_loop import PipedLoop
from celery_sqlbeat.celery_bridge.event_loop import relay_logs

sys.setswitchinterval(1e-5)  # threads take turns in the middle of everything
written = io.StringIO()
logging.basicConfig(stream=written, level=logging.INFO, format="%(message)s")
loop = PipedLoop()
loop.listen(eventlet.spawn_n)
ours = logging.getLogger("celery_sqlbeat.worker")  # as a module has it: to get one takes a lock of its own
relay_logs(loop)
logged = []

def work():
    for number in range(2000):
        ours.info("native")
        logged.append(number)

native.start_thread(work)
end = time.monotonic() + 30
while len(logged) < 2000 and time.monotonic() < end:
    for _ in range(100):
        logging.getLogger("celery").info("green")
    eventlet.sleep(0)
while loop._posted:
    eventlet.sleep(0)
print(written.getvalue().split().count("native"), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_native_threads_log_beside_green_ones_that_hold_the_lock() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CROWDED], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "2000\n", done.stderr
    assert "greenlet" not in done.stderr


def test_a_line_goes_on_at_once_in_its_own_thread_and_is_handed_over_from_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    posted: list[object] = []

    class Loop:
        def post(self, action: object) -> None:
            posted.append(action)

        def run(self) -> None:
            """Never asked for here."""

    logger = logging.Logger("apart")
    logger.addHandler(Relay(Loop()))
    logger.warning("here")
    assert [record.getMessage() for record in caplog.records] == ["here"]
    thread = threading.Thread(target=lambda: logger.warning("there"))
    thread.start()
    thread.join()
    assert len(posted) == 1 and len(caplog.records) == 1
    posted[0]()  # type: ignore[operator]
    assert [record.getMessage() for record in caplog.records] == ["here", "there"]


def test_a_native_thread_that_logs_for_the_first_time_asks_for_no_lock_of_logging() -> None:
    """That lock is green in a worker with green threads: no native thread may ever get it."""
    posted: list[object] = []

    class Loop:
        def post(self, action: object) -> None:
            posted.append(action)

        def run(self) -> None:
            """Never asked for here."""

    package, ours = logging.getLogger("celery_sqlbeat"), logging.getLogger("celery_sqlbeat.relayed")
    handlers, propagate = list(package.handlers), package.propagate
    ours.setLevel(logging.INFO)  # which forgets what was known of levels
    relay_logs(Loop())
    try:
        with logging._lock:  # type: ignore[attr-defined]  # no public name leads to it
            thread = threading.Thread(target=lambda: ours.info("there"), daemon=True)
            thread.start()
            thread.join(30)
            assert not thread.is_alive() and len(posted) == 1
    finally:
        package.handlers[:], package.propagate = handlers, propagate

"""Events of a process whose threads subscribe, emit and fork at once, and of a green one."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CROWD = """
import os, sys, threading, time
from celery_sqlbeat import events
sys.setswitchinterval(1e-5)
over = False

def crowd():
    while not over:
        end = events.subscribe(lambda event: None)
        events.database_available(tries=1)
        end()

threads = [threading.Thread(target=crowd, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
"""
FORKS = f"""{CROWD}
heard = []
events.subscribe(heard.append)
for _ in range(40):
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(20)
        before = len(heard)
        events.worker_ready()
        events.subscribe(heard.append)()
        os._exit(0 if [event.name for event in heard[before:]] == ["worker_ready"] else 1)
    assert os.waitpid(child, 0)[1] == 0
print("done", flush=True)
os._exit(0)
"""
GREEN = f"""
from gevent import monkey, sleep
monkey.patch_all()
import gevent
from celery_sqlbeat import environment as native
{CROWD.replace("events.database_available(tries=1)", "events.database_available(tries=1); sleep(0)")}
told = []

def work():
    for _ in range(5000):
        events.worker_ready()
    told.append(True)

heard = []
events.subscribe(lambda event: heard.append(event) if event.name == "worker_ready" else None)
native.start_thread(work)
end = time.monotonic() + 60
while not told and time.monotonic() < end:
    sleep(0)
print("done" if len(heard) == 5000 else len(heard), flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [FORKS, GREEN], ids=["forks", "green threads beside a native one"])
def test_no_event_waits_for_another_thread(script: str) -> None:
    quiet = "import logging; logging.disable(logging.CRITICAL)\n"  # logging has locks of its own, and its own remedies
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script.replace("import os, sys", quiet + "import os, sys", 1)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "done\n", done.stderr

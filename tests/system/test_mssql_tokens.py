"""A token crosses no fork, and is renewed beside native threads."""

import importlib.util
import os
import subprocess
import sys

import pytest

from celery_sqlbeat.store.sql.dialects.mssql_tokens import RENEW_SECONDS
from tests.support.credentials import HOUR, Credential


def test_a_child_process_asks_a_credential_of_its_own() -> None:
    credential = Credential()
    some = credential.tokens()
    first = some.current(1)
    credential.waiting = []
    credential.now += HOUR - RENEW_SECONDS
    some.current(0)  # a question that the parent's thread puts
    pid = os.fork()
    if pid == 0:
        fine = False
        try:
            credential.waiting = None
            with_the_parents = some._request
            fine = some.current(5) is not first and credential.made == 2 and some._request is not with_the_parents
        finally:
            os._exit(0 if fine else 1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("green", ["gevent.monkey.patch_all()", "eventlet.monkey_patch()"])
def test_a_token_is_renewed_beside_a_native_thread_that_never_yields(green: str) -> None:
    """As the one that holds a worker's leases, whatever the pool."""
    if importlib.util.find_spec(green.partition(".")[0]) is None:  # not imported here, where it would warn of forks
        pytest.skip("not installed")
    code = f"""
import warnings; warnings.simplefilter("ignore")
import {green.rpartition(".")[0] if "gevent" in green else "eventlet"}
{green}
import time
from celery_sqlbeat.store.sql.dialects.mssql_tokens import Tokens
from celery_sqlbeat.environment import original

sleep, start = original("time", "sleep"), original("_thread", "start_new_thread")
asked, now, seen = [], [0.0], []

def ask():
    time.sleep(0.05)  # green, as the sockets of a credential are
    asked.append(1)
    return str(len(asked)), now[0] + 3600

def keeper():
    some = Tokens(lambda: ask, clock=lambda: now[0], wall=lambda: now[0])
    first = some.current(30)
    now[0] = 3400.0
    some.is_retired(first)
    for _ in range(3000):
        if len(asked) > 1:
            break
        sleep(0.01)
    seen.append(len(asked))

start(keeper, ())
while not seen:
    sleep(0.01)
print(seen[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "2", done.stdout + done.stderr

"""The rule of this folder holds.

No process, no network, hardly any sleep, and nothing of the slower folders.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.conftest import MOST_SLEEP, Refusal, Rule

HERE = Path(__file__).parent
SLOWER = "chaos|contract|infra|packaging|pages|process|simulation|system|transfer"


@pytest.mark.parametrize(
    "breach",
    [
        lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        lambda: os.fork(),
        lambda: os.system("true"),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: socket.create_connection(("127.0.0.1", 9)),
        lambda: socket.getaddrinfo("localhost", 80),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", 9)),
    ],
    ids=["run", "fork", "system", "spawn", "connect", "getaddrinfo", "sendto"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_leaves_this_process_is_refused_and_remembered(rule: Rule, breach: Callable[[], object]) -> None:
    with pytest.raises(Refusal, match="move it to tests/system"):
        breach()
    assert rule.broken
    rule.broken.clear()


def test_short_sleeps_add_up_until_they_are_refused(rule: Rule) -> None:
    time.sleep(0.001)
    with pytest.raises(Refusal, match="of sleep"):
        time.sleep(MOST_SLEEP)
    assert rule.broken
    rule.broken.clear()


def test_a_refusal_that_somebody_swallows_is_remembered(rule: Rule) -> None:
    with contextlib.suppress(BaseException):
        os.fork()
    assert len(rule.broken) == 1
    rule.broken.clear()


def test_a_thread_that_was_there_before_the_test_is_not_judged() -> None:
    begin, heard = threading.Event(), list[str]()

    def work(rule: list[Rule]) -> None:
        begin.wait()
        rule[0].hear("socket.connect", ("", ("127.0.0.1", 9)))
        heard.append("heard")

    rules: list[Rule] = []
    before = threading.Thread(target=work, args=[rules])
    before.start()
    rules.append(Rule())
    begin.set()
    before.join()
    assert heard and rules[0].broken == []


def test_what_stays_within_this_process_is_allowed(rule: Rule) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.send(b"x")
        assert other.recv(1) == b"x"
    assert rule.broken == []


def test_nothing_here_imports_from_the_slower_folders() -> None:
    slow = re.compile(rf"^\s*(from tests import .*\b({SLOWER})\b|(from|import) tests\.({SLOWER})\b)", re.MULTILINE)
    assert slow.search("    from tests.process.workers import Worker") and not slow.search("from tests import servers")
    others = [path for path in HERE.rglob("*.py") if path != Path(__file__)]
    assert [path.name for path in others if slow.search(path.read_text())] == []

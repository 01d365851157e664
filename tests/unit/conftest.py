"""A unit test starts no process, talks to no network and hardly sleeps.

Whoever does belongs to tests/system.
"""

import gc
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_sqlbeat import environment
from celery_sqlbeat.config.plugins import CLAIM_ORDERS, RETRY_STRATEGIES, SCHEDULES

MOST_SLEEP = 0.1  # seconds of one test, all its threads together
PROCESSES = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system"}
NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"}


class Refusal(BaseException):
    """A unit test did what it may not do. No `except Exception` on the way swallows it."""


class Rule:
    """What Python's audit events say about one test."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self._slept = 0.0
        self._others = environment.frames().keys() - {threading.get_ident()}
        """Threads that a test before this one has left: what they do is not this test's."""

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse what no unit test may do."""
        if threading.get_ident() in self._others:
            return
        if event in PROCESSES or event in NETWORK:
            self._refuse(f"{event} {arguments[1:2] or arguments}")
        elif event == "time.sleep":
            self._slept += arguments[0]
            if self._slept > MOST_SLEEP:
                self._refuse(f"{self._slept:.3f} s of sleep")

    def _refuse(self, what: str) -> None:
        self.broken.append(what)
        raise Refusal(f"a unit test may not do this: {what}; move it to tests/system, or give the code a stand-in")


_rule: Rule | None = None


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _rule is not None:
        _rule.hear(event, arguments)


sys.addaudithook(_hear)  # for good: Python takes no hook away again


_sleep = time.sleep


def _counted_sleep(seconds: Any) -> None:
    _hear("time.sleep", (seconds,))
    _sleep(seconds)


@pytest.fixture(autouse=True)
def rule() -> Iterator[Rule]:
    """Hold the test to the rule, also where a thread of it or a handler swallowed the refusal."""
    global _rule
    if sys.version_info < (3, 13):  # from then on Python tells of each sleep by itself
        time.sleep = _counted_sleep
    before, _rule = _rule, Rule()
    try:
        yield _rule
    finally:
        now, _rule = _rule, before
        time.sleep = _sleep
    assert now.broken == []


def pytest_collection_finish() -> None:
    """Freeze what was collected: the garbage collector would search it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def as_installed() -> Iterator[None]:
    """Forget the functions that the settings of a test have named."""
    registries = (RETRY_STRATEGIES, CLAIM_ORDERS, SCHEDULES)
    before = [dict(registry._paths) for registry in registries]
    yield
    for registry, paths in zip(registries, before, strict=True):
        registry._paths.clear()
        registry._paths.update(paths)
        registry._loaded.clear()

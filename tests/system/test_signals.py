"""A stop signal waits for the end of a tick, whichever thread the system gives it to."""

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from celery_sqlbeat import environment
from celery_sqlbeat.environment import signals_wait
from tests.support.beats import wait_for


@pytest.fixture
def stopped() -> Iterator[list[int]]:
    """Yield what a handler of SIGTERM saw."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


def stop_this_thread() -> None:
    """To this thread alone.

    What is sent to a process comes when one of its threads is at hand to take it.
    """
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)


def test_a_signal_waits_until_the_end(stopped: list[int]) -> None:
    with signals_wait():
        stop_this_thread()
        assert stopped == []
    assert stopped == [signal.SIGTERM]


def test_a_signal_waits_even_if_another_thread_could_take_it(stopped: list[int]) -> None:
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        with signals_wait():
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):
                assert stopped == []
        wait_for(lambda: stopped, 30)
    finally:
        over.set()
        other.join()
    assert stopped == [signal.SIGTERM]


def test_an_exit_that_the_handler_raises_comes_at_the_end(stopped: list[int]) -> None:
    def leave(number: int, frame: Any) -> None:
        raise SystemExit(3)

    signal.signal(signal.SIGTERM, leave)
    steps = []

    def batch() -> None:
        with signals_wait():
            stop_this_thread()
            steps.append("the batch is finished")

    with pytest.raises(SystemExit):
        batch()
    assert steps


def test_handlers_and_mask_are_as_before(stopped: list[int]) -> None:
    handler, mask = signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with contextlib.suppress(ValueError), signals_wait():
        raise ValueError
    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_a_handler_that_raises_while_it_is_put_back_leaves_nothing_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may take a signal at that moment."""
    mask, exchange, calls = (
        signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        environment._exchange_handlers,
        itertools.count(),
    )

    def raising(handlers: dict[Any, Any]) -> dict[Any, Any]:
        before = exchange(handlers)
        if next(calls):
            raise SystemExit
        return before

    monkeypatch.setattr(environment, "_exchange_handlers", raising)
    with pytest.raises(SystemExit), signals_wait():
        pass
    left = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert left == mask

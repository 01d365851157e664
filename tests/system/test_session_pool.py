"""Lending: one borrower at a time, few idle sessions, and none that crosses a fork."""

import gc
import os
import threading
import traceback
from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_sqlbeat.store.pool import SessionPool

# From Python 3.12 on a fork beside other threads is warned of; Celery's prefork pool does it all
# the same.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


class FakeSession:
    """A session that knows who closed it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.closed = 0

    def close(self) -> None:
        assert os.getpid() == self.pid, "a child closes its parent's session"
        self.closed += 1


def pool(connect: Callable[[], object] = FakeSession, **options: Any) -> SessionPool[Any]:
    return SessionPool(cast(Any, connect), **options)


def in_a_child(check: Callable[[], object]) -> None:
    """Fork, run the check there, and fail here if it failed there."""
    pid = os.fork()
    if pid == 0:
        try:
            check()
            gc.collect()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_nothing_is_opened_before_it_is_borrowed() -> None:
    def connect() -> object:
        raise AssertionError("too early")

    pool(connect)


def test_a_session_is_lent_again_to_the_next_borrower() -> None:
    some = pool()
    session = some.acquire()
    some.release(session)
    assert some.acquire() is session


def test_two_borrowers_get_two_sessions() -> None:
    some = pool()
    assert some.acquire() is not some.acquire()


def test_a_failed_connect_leaves_nothing_lent() -> None:
    def connect() -> object:
        raise ConnectionRefusedError

    some = pool(connect)
    with pytest.raises(ConnectionRefusedError):
        some.acquire()
    assert some._lent == 0


def test_few_sessions_are_kept_and_the_others_closed() -> None:
    some = pool()
    sessions = [cast(Any, some.acquire()) for _ in range(6)]
    for session in sessions:
        some.release(session)
    assert [session.closed for session in sessions] == [0, 0, 0, 0, 1, 1]
    some.close()
    assert [session.closed for session in sessions] == [1] * 6


def test_a_discarded_session_is_closed_and_not_lent_again() -> None:
    some = pool()
    session = cast(Any, some.acquire())
    some.discard(session)
    assert session.closed == 1
    assert some.acquire() is not session


def test_a_session_that_is_spent_is_closed_instead_of_lent() -> None:
    spent: set[object] = set()
    some = pool(is_spent=lambda session: session in spent)
    first, second = cast(Any, some.acquire()), cast(Any, some.acquire())
    some.release(first)
    some.release(second)
    spent.add(second)
    assert cast(Any, some.acquire()) is first
    assert (first.closed, second.closed, some._lent) == (0, 1, 1)


def test_a_child_borrows_a_session_of_its_own_and_closes_none_of_its_parent() -> None:
    some = pool()
    session = cast(Any, some.acquire())
    some.release(session)

    def check() -> None:
        mine = cast(Any, some.acquire())
        assert mine is not session
        assert mine.pid == os.getpid()
        some.release(mine)
        some.close()
        assert mine.closed == 1
        assert session.closed == 0

    in_a_child(check)
    assert some.acquire() is session


def test_a_child_may_close_a_lender_that_it_never_used() -> None:
    some = pool()
    some.release(some.acquire())
    in_a_child(some.close)


def test_a_lock_held_by_another_thread_during_the_fork_does_not_stop_the_child() -> None:
    some = pool()
    some.release(some.acquire())
    with some._lock:
        in_a_child(lambda: some.release(some.acquire()))


def test_sessions_that_do_not_survive_a_fork_are_closed_before_it() -> None:
    some = pool(survive_fork=False)
    session = cast(Any, some.acquire())
    some.release(session)
    in_a_child(lambda: some.release(some.acquire()))
    assert session.closed == 1
    assert some.acquire() is not session


def test_a_fork_waits_for_such_a_session_that_another_thread_uses() -> None:
    some = pool(survive_fork=False)
    borrowed, back = threading.Event(), threading.Event()
    order: list[str] = []

    def use() -> None:
        session = some.acquire()
        borrowed.set()
        back.wait(10)
        order.append("given back")
        some.release(session)

    thread = threading.Thread(target=use)
    thread.start()
    borrowed.wait(10)
    threading.Timer(0.05, back.set).start()
    in_a_child(lambda: None)
    order.append("forked")
    thread.join()
    assert order == ["given back", "forked"]
    some.release(some.acquire())


def test_a_fork_waits_no_longer_than_it_must_for_its_own_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sqlbeat.store.pool._LONGEST_DRAIN", 0.02)
    some = pool(survive_fork=False)
    session = some.acquire()
    in_a_child(lambda: None)
    some.release(session)
    assert some.acquire() is session


def test_beside_green_threads_a_session_stays_with_its_native_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket of gevent belongs to the event loop of the thread that made it."""
    monkeypatch.setattr("celery_sqlbeat.environment.is_patched", lambda: True)
    some = pool()
    mine, theirs = some.acquire(), list[Any]()
    some.release(mine)

    def use() -> None:
        theirs.append(some.acquire())
        some.release(theirs[0])

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert theirs[0] is not mine
    assert some.acquire() is mine
    assert (mine.closed, theirs[0].closed) == (0, 0)


def test_sessions_of_threads_that_have_ended_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sqlbeat.environment.is_patched", lambda: True)
    some, used = pool(), list[Any]()

    def use() -> None:
        used.append(some.acquire())
        some.release(used[-1])

    for number in range(6):
        monkeypatch.setattr(some, "_thread", lambda number=number: number)
        use()
    assert [session.closed for session in used] == [1, 1, 0, 0, 0, 0]

"""Rounds between kombu's event loop and the thread: with the real loop, which the test turns, and files of its own."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from kombu.asynchronous import Hub

from celery_sqlbeat.store.steps import Steps
from celery_sqlbeat.worker.alarm import Alarm
from celery_sqlbeat.worker.loops import PipedLoop
from celery_sqlbeat.worker.serving import Serving

NEVER = float("inf")
PATIENCE = 30.0  # seconds


class Question:
    """A question to a database: its answer is there once the test says so."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)

    def answer(self) -> None:
        self.theirs.send(b"x")

    def is_answered(self) -> bool:
        try:
            return bool(self.ours.recv(1))
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class Counting(Alarm):
    """The thread's alarm; the test is the thread."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1


class House:
    """A loop, a thread, and rounds that note who takes their steps."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.hub: Any = cast(Any, Hub)()
        self.turns = self.hub.create_loop()
        self.loop = PipedLoop()
        self.loop.join(self.hub)
        self.alarm = Counting()
        self.who = "loop"
        self.done: list[str] = []
        """Who has ended each round."""
        self.begun = 0
        self.question: Question | None = None
        self.needs_thread = False
        self.error: Exception | None = None
        self.next_in = [NEVER]
        self.within: Callable[[], None] = lambda: None
        self.serving = Serving(self.round, self.alarm, lambda: self.time)

    def round(self) -> Steps[float]:
        self.begun += 1
        if self.needs_thread:
            yield None
        if self.question is not None:
            while not (yield self.question.ours.fileno()) and not self.question.is_answered():
                pass
        self.within()
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.done.append(self.who if threading.current_thread() is threading.main_thread() else "thread")
        return self.next_in.pop(0) if len(self.next_in) > 1 else self.next_in[0]

    def thread(self) -> float:
        """What the thread does when it wakes."""
        self.who = "thread"
        try:
            return self.serving()
        finally:
            self.who = "loop"

    def wake_from_elsewhere(self) -> None:
        """As a thread that is neither of both."""
        caller = threading.Thread(target=self.serving.wake)
        caller.start()
        caller.join()

    def turn(self, times: int = 5) -> None:
        """Let the loop do what it has to."""
        self.hub.call_later(0.05, lambda: None)  # it never sleeps longer
        for _ in range(times):
            self.loop.post(lambda: None)
            next(self.turns)

    def turn_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end
            self.turn(1)

    def close(self) -> None:
        self.serving.leave()
        self.hub.close()
        self.loop.close()
        if self.question is not None:
            self.question.close()


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.close()


def test_without_a_loop_the_thread_does_the_rounds(house: House) -> None:
    house.question = Question()
    house.next_in = [3.0, NEVER]
    assert house.thread() == 3.0
    house.serving.wake()
    assert house.alarm.rings == 1
    assert house.thread() == NEVER
    assert house.done == ["thread", "thread"]


def test_the_loop_asks_goes_on_and_takes_the_answer(house: House) -> None:
    house.question = Question()
    house.serving.join(house.loop)
    house.turn()
    assert (house.begun, house.done) == (1, [])
    assert house.thread() == 1.0  # the thread only looks after it
    house.question.answer()
    house.turn_until(lambda: house.done == ["loop"])
    assert house.thread() == NEVER


def test_the_loop_begins_the_next_round_when_the_last_one_said(house: House) -> None:
    house.next_in = [0.01, 0.02, NEVER]
    house.serving.join(house.loop)
    house.turn_until(lambda: len(house.done) == 3)
    house.turn()
    assert house.done == ["loop"] * 3


def test_who_calls_while_a_round_is_under_way_gets_another(house: House) -> None:
    house.question = Question()
    house.serving.join(house.loop)
    house.turn()
    house.serving.wake()
    house.serving.wake()
    house.turn()
    assert house.begun == 1
    house.question.answer()
    house.turn_until(lambda: house.begun == 2)
    house.question.answer()
    house.turn_until(lambda: len(house.done) == 2)
    house.turn()
    assert house.begun == 2


def test_what_may_take_long_is_left_to_the_thread_and_the_loop_goes_on_after_it(house: House) -> None:
    house.needs_thread = True
    house.serving.join(house.loop)
    house.alarm.rings = 0
    house.turn()
    assert house.done == [] and house.alarm.rings == 1
    house.serving.wake()
    house.loop.post(house.serving._go_on)  # as a timer of before does
    house.turn()
    assert (house.begun, house.done) == (1, [])
    house.thread()
    assert house.done == ["thread"]
    house.needs_thread = False
    house.turn_until(lambda: house.done == ["thread", "loop"])  # for who called meanwhile
    house.turn()
    assert house.begun == 2


def test_the_loop_hears_from_the_thread_when_the_next_round_is(house: House) -> None:
    house.needs_thread = True
    house.next_in = [0.01, NEVER]
    house.serving.join(house.loop)
    house.turn()
    house.thread()
    house.needs_thread = False
    house.turn_until(lambda: house.done == ["thread", "loop"])


def test_a_round_that_could_not_begin_beside_the_threads_begins_after_it(house: House) -> None:
    house.serving._hands.acquire()  # as the thread has them while it takes its last step
    house.serving.join(house.loop)
    house.turn()
    assert house.begun == 0
    house.serving._hands.release()
    house.wake_from_elsewhere()
    house.turn_until(lambda: house.done == ["loop"])


def test_who_calls_at_the_very_end_of_the_threads_round_gets_another(house: House) -> None:
    house.within = lambda: house.serving._soon(0.0)  # by the loop, which has not heard yet that it ends
    house.needs_thread = True
    house.serving.join(house.loop)
    house.turn()
    house.thread()
    house.needs_thread, house.within = False, lambda: None
    house.turn_until(lambda: house.done == ["thread", "loop"])
    house.turn()
    assert house.begun == 2


def test_another_thread_reaches_the_loop(house: House) -> None:
    house.serving.join(house.loop)
    house.turn()
    house.wake_from_elsewhere()
    house.turn_until(lambda: house.done == ["loop", "loop"])


def test_the_thread_ends_the_round_of_a_loop_that_stands_still(house: House) -> None:
    house.question = Question()
    house.serving.join(house.loop)
    house.turn()
    house.time += 0.9
    assert house.thread() == 1.0 and not house.done
    house.time += 0.2
    house.thread()
    assert house.done == ["thread"]
    house.question.answer()
    house.turn_until(lambda: house.done == ["thread", "loop"])  # it comes to itself


def test_the_thread_does_what_others_call_for_beside_a_loop_that_stands_still(house: House) -> None:
    house.serving.join(house.loop)
    house.turn()
    house.wake_from_elsewhere()
    house.time += 1.1
    house.thread()
    assert house.done == ["loop", "thread"]


def test_a_loop_that_sleeps_past_a_round_is_woken(house: House) -> None:
    """kombu's does so where ten of its timers are due at once."""
    house.next_in = [0.001, NEVER]
    house.serving.join(house.loop)
    house.turn_until(lambda: house.done == ["loop"])
    house.hub.timer.clear()
    house.time += 0.001
    assert house.thread() == pytest.approx(0.025)
    house.turn()
    assert house.begun == 1
    house.time += 0.03
    house.thread()
    house.turn()
    assert house.done == ["loop", "loop"]


def test_the_thread_goes_on_where_the_loop_ends(house: House) -> None:
    house.question = Question()
    house.serving.join(house.loop)
    house.turn()
    listeners = len(house.hub.readers)
    house.alarm.rings = 0
    house.serving.leave()
    assert house.alarm.rings == 1 and len(house.hub.readers) == listeners - 1
    house.question.answer()
    house.turn()
    assert house.done == []
    assert house.thread() == NEVER
    assert (house.begun, house.done) == (1, ["thread"])


def test_a_loop_that_begins_in_the_midst_of_the_threads_round_waits_for_its_end(house: House) -> None:
    def join() -> None:
        house.within = lambda: None
        house.serving.join(house.loop)
        house.turn()

    house.within = join
    house.thread()
    assert (house.begun, house.done) == (1, ["thread"])
    house.turn_until(lambda: house.done == ["thread", "loop"])


@pytest.mark.parametrize("needs_thread", [False, True])
def test_an_error_that_nobody_expected_is_logged_and_the_rounds_go_on(
    house: House, caplog: pytest.LogCaptureFixture, needs_thread: bool
) -> None:
    house.error, house.needs_thread = RuntimeError("nobody expected this"), needs_thread
    house.serving.join(house.loop)
    house.turn()
    if needs_thread:
        house.thread()
        house.needs_thread = False
    assert "nobody expected this" in caplog.text
    assert house.done == []
    house.turn_until(lambda: house.done == ["loop"])  # a second later


def test_what_a_round_posts_is_done_after_it_and_outside_of_it(house: House) -> None:
    """It may take long, as an acknowledgement does beside a broker that is away: the thread must be free then."""
    found: list[object] = []

    def look() -> None:
        house.time += 2.0
        found.append(house.serving._hands.acquire(False))
        house.serving._hands.release()

    house.within = lambda: house.loop.post(look)
    house.serving.join(house.loop)
    house.turn_until(lambda: bool(house.done))
    assert found == [True]


def test_a_file_that_is_closed_elsewhere_and_its_number_given_away_confuses_nobody(house: House) -> None:
    house.question = Question()
    house.serving.join(house.loop)
    house.turn()
    house.time += 1.1
    house.thread()
    number = house.question.ours.fileno()
    house.question.close()
    reader, writer = os.pipe()
    os.dup2(reader, number)
    heard: list[bytes] = []
    house.hub.add_reader(number, lambda: heard.append(os.read(number, 10)))
    house.question = None
    house.serving.wake()
    house.turn_until(lambda: len(house.done) == 2)
    os.write(writer, b"of another")
    house.turn_until(lambda: heard == [b"of another"])
    house.hub.remove(number)
    for file in {reader, writer, number}:
        os.close(file)

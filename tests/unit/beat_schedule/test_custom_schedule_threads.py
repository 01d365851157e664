"""Custom schedules are asked in threads, outside of transactions.

One that does not answer holds up nobody else.
"""

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_sqlbeat.beat_schedule.custom_schedule import ScheduleQuestions


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def admission() -> Iterator[threading.Event]:
    """Yield what a schedule waits for that blocks; opened in the end, so that no thread is left."""
    made = threading.Event()
    yield made
    made.set()


class Stuck:
    """A question that waits."""

    def __init__(self, admission: threading.Event) -> None:
        self._admission = admission
        self._began = threading.Event()

    def __call__(self) -> str:
        self._began.set()
        self._admission.wait()
        return "late"

    def is_asked(self) -> None:
        assert self._began.wait(30)


def until_answered(questions: ScheduleQuestions, *keys: str) -> None:
    end = time.monotonic() + 30
    while questions.pending() & set(keys):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_nothing_is_asked_before_it_is_settled() -> None:
    questions, asked = ScheduleQuestions(), list[str]()

    def say() -> str:
        asked.append("a")
        return "yes"

    assert questions.answer("a", 1, say, "a") is None
    assert asked == [] and questions.pending() == set()
    questions.ask_new(30)
    assert asked == ["a"]
    assert questions.answer("a", 1, lambda: pytest.fail("it has been asked"), "a") == "yes"


def test_another_question_is_asked_anew_and_the_same_one_once() -> None:
    questions, asked = ScheduleQuestions(), list[int]()

    def ask(number: int) -> Any:
        def say() -> int:
            asked.append(number)
            return number

        return questions.answer("a", number, say, "a")

    ask(1)
    ask(1)
    questions.ask_new(30)
    assert ask(1) == 1 and ask(2) is None
    questions.ask_new(30)
    assert ask(2) == 2 and asked == [1, 2]


def test_a_question_without_an_answer_is_pending_and_the_others_are_answered(admission: threading.Event) -> None:
    clock = Clock()
    questions = ScheduleQuestions(clock)
    stuck = Stuck(admission)
    questions.answer("stuck", 1, stuck, "stuck")
    assert not questions.ask_new(0.0)
    assert questions.pending() == {"stuck"} and questions.seconds_left is not None
    stuck.is_asked()
    clock.time = 2.0
    questions.answer("quick", 1, lambda: "yes", "quick")
    questions.ask_new(30)
    assert questions.answer("quick", 1, lambda: None, "quick") == "yes"
    assert questions.pending() == {"stuck"}


def test_whoever_waits_behind_a_slow_question_gets_a_thread_of_its_own(admission: threading.Event) -> None:
    clock = Clock()
    questions = ScheduleQuestions(clock)
    stuck = Stuck(admission)
    questions.answer("stuck", 1, stuck, "stuck")
    questions.answer("behind", 1, lambda: "yes", "behind")
    questions.ask_new(0.0)
    stuck.is_asked()
    clock.time = 2.0
    questions.has_news()
    until_answered(questions, "behind")
    assert questions.has_news() and not questions.has_news()
    assert questions.pending() == {"stuck"}


def test_a_question_that_takes_long_is_told_and_not_at_every_look(
    admission: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    questions = ScheduleQuestions(clock)
    stuck = Stuck(admission)
    questions.answer("key", 1, stuck, "nightly")
    questions.ask_new(0.0)
    stuck.is_asked()
    with caplog.at_level(logging.ERROR):
        for clock.time in (1.0, 6.0, 7.0, 200.0):
            questions.has_news()
    assert caplog.text.count("it has not said for") == 1
    assert 0.0 < (questions.seconds_left or 0.0) <= 1.0


def test_an_answer_that_comes_late_is_news_and_counts_for_its_question(admission: threading.Event) -> None:
    questions = ScheduleQuestions()
    questions.answer("key", 1, Stuck(admission), "key")
    questions.ask_new(0.0)
    assert not questions.has_news()
    admission.set()
    until_answered(questions, "key")
    assert questions.has_news()
    assert questions.answer("key", 1, lambda: None, "key") == "late"
    assert questions.seconds_left is None

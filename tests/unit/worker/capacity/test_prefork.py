"""prefork: a message begins with its slot in hand; what will have one in a moment asks ahead.

No slot is ever lost.
"""

import heapq
import itertools
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from celery_sqlbeat import environment
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.worker.admission import Admission, Answered, PendingMessage
from celery_sqlbeat.worker.capacity import prefork
from celery_sqlbeat.worker.capacity.prefork import CapacityEstimate, PreforkCapacity
from celery_sqlbeat.worker.lease import RunLease, StaleMessage, StartAnswer, Started, StoreUnavailable
from tests.support.stock import untyped

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)


class Shop:
    """A pool of so many slots, whose tasks and answers come when the test says."""

    def __init__(self, processes: int, monkeypatch: pytest.MonkeyPatch, prefetch_multiplier: int = 4) -> None:
        self.now = 1000.0
        monkeypatch.setattr(environment, "monotonic", lambda: self.now)
        monkeypatch.setattr(prefork, "CapacityEstimate", lambda: CapacityEstimate(lambda: self.now))
        self.semaphore = LaxBoundedSemaphore(processes)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.pending: dict[PendingMessage, tuple[Callable[[Any], None], bool]] = {}
        self.running: list[PendingMessage] = []
        self.refused: list[PendingMessage] = []
        self.hurried = 0
        self.refuses_to_begin: set[PendingMessage] = set()
        self.more = 0
        self.is_unavailable = False
        self.worker_runtime = self
        worker = SimpleNamespace(
            semaphore=self.semaphore,
            prefetch_multiplier=prefetch_multiplier,
            _quick_acquire=self.semaphore.acquire,
            _quick_release=self.semaphore.release,
            timer=SimpleNamespace(call_after=self.call_after),
        )
        self.slots = PreforkCapacity(cast(Admission, self), worker, self.process)
        self.loop = SimpleNamespace(post=lambda action: action())

    # What the slots see of the gate

    def ask(self, pending: PendingMessage, answered: Answered, ahead: bool = False) -> None:
        self.pending[pending] = (partial(answered, pending), ahead)

    def flush_soon(self) -> None:
        self.hurried += 1

    def begins(self, pending: PendingMessage, run_lease: RunLease) -> bool:
        return pending not in self.refuses_to_begin

    def refuse(self, pending: PendingMessage, answer: StartAnswer) -> None:
        self.refused.append(pending)

    def waits_on(self, pending: PendingMessage) -> None:
        pass

    def goes_on(self, pending: PendingMessage) -> None:
        pass

    def is_open(self, pending: PendingMessage) -> bool:
        return pending not in self.running and pending not in self.refused

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        self.call_after(seconds, action)

    def unstart_late(self, pending: PendingMessage, run_lease: RunLease) -> None:
        self.refuses_to_begin.add(pending)

    def read_ahead(self, messages: int) -> None:
        self.more += messages

    # What happens

    def call_after(self, seconds: float, action: Callable[..., None], args: Any = ()) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), lambda: action(*args)))

    def later(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, action = heapq.heappop(self._timers)
            action()
        self.now = end

    def process(self, req: Any) -> None:
        req._apply_result = "handed over"
        self.running.append(req.pending)

    def message(self) -> PendingMessage:
        req = SimpleNamespace(_apply_result=None, message=SimpleNamespace(channel=None))
        pending = PendingMessage.__new__(PendingMessage)
        pending.req, pending.is_cut, pending.is_withdrawn = req, False, False
        req.pending = pending
        self.slots.foresee(pending)
        self.semaphore.acquire(self.slots.admit, pending)
        return pending

    def answer(self, *messages: PendingMessage, answer: StartAnswer | None = None) -> None:
        for pending in messages:
            answered, _ = self.pending.pop(pending)
            answered(answer or Started(cast(RunLease, SimpleNamespace(run=RUN))))

    def end(self, *messages: PendingMessage) -> None:
        for pending in messages:
            self.running.remove(pending)
            self.semaphore.release()

    def get_going(self, gap: float = 0.001) -> None:
        """Short tasks, one after the other, with others that wait.

        One task goes on in each process.
        """
        for _ in range(80 + self.semaphore.initial_value):
            self.message()
        self.answer(*list(self.pending))
        for _ in range(80):
            self.later(gap)
            self.end(self.running[0])
            self.answer(*list(self.pending))
        assert len(self.running) == self.semaphore.initial_value


RUN = StartedRun("run", "claim", 1, "job", "name", "schedule", NOON, 1, 120.0, 3, 0, 0, 1, "start")


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(1, monkeypatch)


def test_a_message_asks_when_it_has_its_slot_and_not_before(shop: Shop) -> None:
    first, second = shop.message(), shop.message()
    assert set(shop.pending) == {first}
    shop.answer(first)
    assert shop.running == [first] and not shop.pending
    shop.end(first)
    assert set(shop.pending) == {second} and not shop.pending[second][1]


def test_while_tasks_are_short_the_next_ones_ask_ahead_and_begin_at_once(shop: Shop) -> None:
    shop.get_going()
    last = shop.running[0]
    ahead = [shop.message() for _ in range(5)]
    assert set(shop.pending) == set(ahead) and all(shop.pending[one][1] for one in ahead)
    shop.answer(*ahead)
    assert shop.running == [last]
    shop.end(last)
    assert shop.running == [ahead[0]]


def test_while_tasks_are_long_nobody_asks_ahead(shop: Shop) -> None:
    shop.get_going(gap=0.05)
    assert not [shop.message() for _ in range(5) if shop.pending]


def test_a_slot_that_comes_before_its_answer_hurries_it(shop: Shop) -> None:
    shop.get_going()
    ahead = shop.message()
    hurried = shop.hurried
    shop.end(shop.running[0])
    assert shop.hurried == hurried + 1 and not shop.running
    shop.answer(ahead)
    assert shop.running == [ahead]


@pytest.mark.parametrize("answer", [StaleMessage(), StoreUnavailable("no database")])
def test_what_is_refused_ahead_gives_its_slot_to_the_next(shop: Shop, answer: StartAnswer) -> None:
    shop.get_going()
    refused, following = shop.message(), shop.message()
    shop.answer(refused, answer=answer)
    shop.answer(following)
    assert shop.refused == [refused]
    shop.end(shop.running[0])
    assert shop.running == [following] and shop.refused == [refused]


@pytest.mark.parametrize("answer", [StaleMessage(), StoreUnavailable("no database")])
def test_what_is_refused_with_its_slot_gives_it_to_the_next(shop: Shop, answer: StartAnswer) -> None:
    refused, following = shop.message(), shop.message()
    shop.answer(refused, answer=answer)
    shop.answer(following)
    assert shop.running == [following] and shop.refused == [refused]


def test_a_lease_that_was_given_back_before_its_slot_came_gives_the_slot_to_the_next(shop: Shop) -> None:
    shop.get_going()
    late, following = shop.message(), shop.message()
    shop.answer(late, following)
    shop.refuses_to_begin.add(late)
    shop.end(shop.running[0])
    assert shop.running == [following]


def test_a_slot_does_not_wait_long_for_an_answer(shop: Shop) -> None:
    first, second = shop.message(), shop.message()
    shop.later(2.0)
    assert set(shop.pending) == {first, second}, "the first has let its slot go"
    shop.later(2.0)
    assert shop.semaphore.value == 1
    shop.answer(first)
    assert shop.running == [first]
    shop.answer(second)
    assert shop.running == [first], "it waits for the slot"
    shop.end(first)
    assert shop.running == [second]
    shop.end(second)
    assert shop.semaphore.value == 1


def test_when_the_connection_ends_nobody_keeps_a_slot(shop: Shop) -> None:
    shop.get_going()
    ahead = [shop.message() for _ in range(3)]
    shop.semaphore.clear()  # as Celery does
    shop.slots.leave(is_closing=False)
    for pending in ahead:
        pending.is_cut = True
    shop.answer(*ahead)
    assert shop.semaphore.value == 1


def test_while_tasks_are_short_some_more_messages_may_come(shop: Shop) -> None:
    shop.get_going()
    assert shop.more == 32
    shop.later(5.0)
    assert shop.more == 0, "no slot came for seconds: nobody knows how long tasks are now"


def test_where_no_message_is_to_wait_none_more_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(1, monkeypatch, prefetch_multiplier=1)
    shop.get_going()
    assert shop.more == 0


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Eight processes whose tasks were so short that slots came fast; all of them are free."""
    shop = Shop(8, monkeypatch)
    shop.get_going()
    shop.end(*list(shop.running))
    assert shop.semaphore.value == 8
    return shop


def test_while_slots_come_fast_nobody_keeps_one_for_the_time_of_the_question(wide: Shop) -> None:
    messages = [wide.message() for _ in range(20)]
    assert set(wide.pending) == set(messages) and wide.semaphore.value == 8
    assert wide.hurried >= 20
    wide.answer(*messages)
    assert wide.running == messages[:8]
    wide.end(*messages[:8])
    assert wide.running == messages[8:16]
    wide.end(*messages[8:16])
    wide.end(*messages[16:])
    assert wide.semaphore.value == 8


def test_no_more_ask_without_a_slot_than_will_have_one_in_a_moment(wide: Shop) -> None:
    for _ in range(200):
        wide.message()
    without_slot = [pending for pending, (_, ahead) in wide.pending.items() if ahead]
    assert 30 <= len(without_slot) <= 64
    assert len(wide.pending) == len(without_slot) + 8


def test_slots_that_come_rarely_are_kept_for_the_time_of_the_question(wide: Shop) -> None:
    wide.later(0.02)
    message = wide.message()
    assert wide.pending[message][1] is False and wide.semaphore.value == 7


@pytest.mark.parametrize("answer", [StaleMessage(), StoreUnavailable("no database")])
def test_what_is_refused_after_it_let_its_slot_go_gives_back_no_other(wide: Shop, answer: StartAnswer) -> None:
    refused, running = wide.message(), wide.message()
    wide.answer(running)
    wide.answer(refused, answer=answer)
    assert wide.refused == [refused] and wide.semaphore.value == 7


def test_a_slot_that_was_let_go_is_there_for_messages_that_ask_nothing(wide: Shop) -> None:
    for _ in range(20):
        wide.message()
    others: list[int] = []
    wide.semaphore.acquire(others.append, 1)
    assert others == [1]


def test_what_let_its_slot_go_before_the_connection_ended_takes_no_other(wide: Shop) -> None:
    messages = [wide.message() for _ in range(3)]
    wide.semaphore.clear()  # as Celery does
    wide.slots.leave(is_closing=False)
    for pending in messages:
        pending.is_cut = True
    wide.answer(*messages)
    assert wide.semaphore.value == 8 and not wide.running


@pytest.mark.parametrize("processes", [1, 8])
def test_a_thousand_short_tasks_lose_no_slot(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(processes, monkeypatch)
    messages = [shop.message() for _ in range(1000)]
    for turn in range(20_000):
        shop.later(0.0005)
        if shop.running:
            shop.end(shop.running[0])
        if turn % 7 == 0:
            for number, pending in enumerate(list(shop.pending)):
                shop.answer(pending, answer=StaleMessage() if number % 5 == 4 else None)
        if not (shop.running or shop.pending or untyped(shop.semaphore)._waiting):
            break
    assert shop.semaphore.value == processes and len(messages) == 1000


def test_while_the_database_is_away_no_message_keeps_a_slot_that_others_could_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop(2, monkeypatch)
    tasks = [shop.message(), shop.message()]
    shop.answer(*tasks)
    waiting = [shop.message() for _ in range(1000)]  # behind the tasks, all of them with the same two slots
    plain: list[str] = []
    shop.semaphore.acquire(plain.append, "of others")
    shop.is_unavailable = True
    posted: list[Callable[[], None]] = []
    shop.loop.post = posted.append
    shop.end(*tasks)
    while posted:
        posted.pop(0)()
    assert plain == ["of others"] and shop.running == [] and list(shop.pending) == waiting[:1], "one asks for all"
    shop.semaphore.release()
    shop.loop.post = lambda action: action()
    shop.is_unavailable = False
    shop.answer(waiting[0])
    assert shop.running == waiting[:1], "it has taken a slot with its answer"
    shop.later(0.2)
    assert list(shop.pending) == waiting[1:2], "the others ask as they get theirs"
    shop.answer(waiting[1])
    assert shop.running == waiting[:2]


def test_the_next_one_asks_where_the_first_has_given_up_and_none_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = Shop(1, monkeypatch)
    shop.is_unavailable = True
    first, second, third = shop.message(), shop.message(), shop.message()
    assert list(shop.pending) == [first] and shop.semaphore.value == 1
    shop.later(10)
    assert list(shop.pending) == [first]
    shop.answer(first, answer=StoreUnavailable("the database could not be asked"))
    shop.later(0.2)
    assert list(shop.pending) == [second] and shop.refused == [first]
    shop.later(5)
    assert shop.refused == [first, third] and shop.semaphore.value == 1
    shop.slots.leave(is_closing=False)
    shop.later(60)
    assert shop.refused == [first, third]


def test_a_slot_that_was_lost_with_its_connection_is_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(1, monkeypatch)
    shop.is_unavailable = True
    posted: list[Callable[[], None]] = []
    shop.loop.post = posted.append
    pending = shop.message()
    pending.is_cut = True
    posted.pop()()
    assert shop.semaphore.value == 0

"""What a beat concludes from its looks at the consumers of a queue, with a standing and a clock of the test."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_sqlbeat.beat.bystanders import KEY, Bystanders, May
from celery_sqlbeat.beat.consumers import Look
from celery_sqlbeat.beat.evidence import Register
from celery_sqlbeat.roster import Answer

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
OURS = Answer("w1", frozenset({"q"}), {"node": "n1"})
PLAIN = Answer("w2", frozenset({"q"}), None)
MEMORY = 3600.0


class House:
    """A beat, the workers and the broker in one; who asks has the answer after `answered`."""

    def __init__(self, never: bool = False) -> None:
        self.now = 0.0
        self.found: dict[str, Any] = {"roll": (OURS,), "consumers": 1, "waiting": 0}
        self.heard, self.pending = 1, 0
        self.rows: list[Mapping[str, object]] = []
        self.told: dict[str, Callable[[], Any]] = {}
        self.asks: list[Callable[[], None]] = []
        me: Any = self
        self.bystanders = Bystanders(me, self.look_at, MEMORY, not never, lambda: self.now, self.asks.append)

    def tell(self, key: str, ask: Callable[[], Any]) -> None:
        self.told[key] = ask

    def told_by_others(self, _key: str) -> list[Mapping[str, object]]:
        return self.rows

    def register(self, _queue: str, _seconds_ago: float) -> Register:
        nodes, now = frozenset({"n1"}), self.server_now()
        return Register(self.heard, self.pending, self.heard, self.pending, nodes, frozenset(), now)

    def server_now(self) -> datetime:
        return NOON + timedelta(seconds=self.now)

    def look_at(self, queues: Iterable[str]) -> Mapping[str, Look]:
        return {queue: Look(**{"counted_at": self.now, "roll": None, **self.found}) for queue in queues}

    def answered(self) -> int:
        """Let all that was asked be answered; how much that was."""
        asks, self.asks[:] = list(self.asks), []
        for ask in asks:
            ask()
        return len(asks)

    def may(self, published: float = 0.0) -> May | None:
        """What may be done with a message that was published then."""
        may = self.bystanders.may_republish("q", NOON + timedelta(seconds=published), self.server_now())
        if may is None and self.answered():
            return self.may(published)
        self.now += 1.0
        return may


def test_a_message_is_published_again_where_everybody_keeps_leases_and_nothing_waits() -> None:
    house = House()
    assert house.may() is May.PUBLISH
    house.found["waiting"] = 3
    house.now += 100
    assert house.may() is May.WAIT


def test_nothing_is_known_before_somebody_has_looked_nor_where_nobody_can() -> None:
    house = House()
    assert house.bystanders.may_republish("q", NOON, NOON) is None
    house.found = {"roll": None}
    assert house.may() is May.WAIT


def test_a_worker_that_was_not_heard_of_since_is_waited_for() -> None:
    house = House()
    house.heard, house.pending = 0, 1
    assert house.may() is None
    house.heard, house.pending = 1, 0
    assert house.may() is May.PUBLISH


def test_a_stranger_is_believed_in_at_the_second_look_and_what_he_may_have_taken_is_never_sent_again() -> None:
    house = House()
    house.found["consumers"] = 2
    assert house.may(-10) is None
    house.now += 5
    assert house.may(-10) is May.WAIT
    house.found["consumers"] = 1
    house.now += 100
    assert house.may(-10) is May.WAIT, "he may be busy with it"
    assert house.may(50) is May.PUBLISH, "he was gone when it was sent"


def test_who_is_there_for_a_moment_is_no_stranger() -> None:
    house = House()
    house.found["consumers"] = 2
    assert house.may() is None
    house.found["consumers"] = 1
    house.now += 5
    assert house.may() is May.PUBLISH


def test_a_worker_without_the_extension_is_left_alone_with_the_message_and_remembered() -> None:
    house = House()
    house.found["roll"] = (OURS, PLAIN)
    assert house.may() is May.LEAVE
    house.found["roll"] = (OURS,)
    house.now += 100
    assert house.may() is May.WAIT


def test_where_nobody_counts_a_worker_without_the_extension_is_remembered_as_long_as_all_workers_are() -> None:
    house = House()
    house.found = {"roll": (OURS, PLAIN)}
    assert house.may() is May.LEAVE
    house.found = {"roll": (OURS,)}
    house.now += MEMORY / 2
    assert house.may(house.now - 10) is May.WAIT
    house.now += MEMORY
    assert house.may(house.now - 10) is May.PUBLISH


def test_what_one_beat_has_seen_counts_for_all_and_after_its_end() -> None:
    first = House()
    first.found["roll"] = (PLAIN,)
    assert first.may(-1) is May.LEAVE
    second = House()
    second.rows = [first.told[KEY](), {"q": "no instant"}, {"q": 7}]
    assert second.may(-1) is May.WAIT
    assert second.may(0.5) is May.PUBLISH


def test_beats_look_now_and_then_while_they_send_leased_messages() -> None:
    house = House()
    house.bystanders.watch(["q", None])
    assert house.answered() == 1
    house.bystanders.watch(["q"])
    assert house.answered() == 0
    house.found["consumers"] = 2
    house.now = 30.0
    house.bystanders.watch(["q"])
    house.answered()
    house.found["consumers"] = 1
    house.now = 60.0
    house.bystanders.watch(["q"])
    house.answered()
    assert house.may(10) is May.WAIT, "somebody was there at the second look"
    assert house.may(40) is May.PUBLISH


def test_with_never_nobody_is_asked() -> None:
    house = House(never=True)
    house.bystanders.watch(["q"])
    assert house.may() is May.WAIT
    assert house.answered() == 0


def test_only_who_is_known_to_be_there_counts_where_a_task_is_unknown_to_all_others() -> None:
    house = House()
    assert house.bystanders.consume(None) is True
    assert house.bystanders.consume("q") is None
    house.answered()
    assert house.bystanders.consume("q") is False
    house.heard, house.pending = 0, 1
    house.now += 1
    assert house.bystanders.consume("q") is False
    house.heard, house.pending = 0, 0
    house.now += 1
    assert house.bystanders.consume("q") is True

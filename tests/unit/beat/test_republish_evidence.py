"""What a beat concludes from its checks of the consumers of a queue, with a settable clock."""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_sqlbeat.beat.evidence import Reading
from celery_sqlbeat.beat.republish_evidence import KEY, RepublishAnswer, RepublishEvidence
from celery_sqlbeat.celery_bridge.inspect_workers import Answer, Client, QueueConsumers
from celery_sqlbeat.errors import DatabaseUnavailable
from celery_sqlbeat.model import HeldLease, SeenNode

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
OURS = Answer("w1", frozenset({"q"}), {"node": "n1"})
PLAIN = Answer("w2", frozenset({"q"}), None)
MEMORY = 3600.0


class House:
    """A beat, the workers and the broker in one; who asks has the answer after `answered`."""

    def __init__(self, never: bool = False) -> None:
        self.now = 0.0
        self.found: dict[str, Any] = {"roll": (OURS,), "consumers": 1, "waiting": 0}
        self.beats, self.silent_since = True, 0.0
        self.jumped = 0.0
        self.is_away = self.broker_is_away = False
        self.rows: list[Mapping[str, object]] = []
        self.told: dict[str, Callable[[], Any]] = {}
        self.asks: list[Callable[[], None]] = []
        me: Any = self
        self.bystanders = RepublishEvidence(me, self.look_at, MEMORY, not never, lambda: self.now, self.asks.append)

    def tell(self, key: str, ask: Callable[[], Any]) -> None:
        self.told[key] = ask

    def told_by_others(self, _key: str) -> list[Mapping[str, object]]:
        return self.rows

    def workers(self) -> Reading:
        """One worker; where it lives, it gives a heartbeat at every moment."""
        if self.is_away:
            raise DatabaseUnavailable("away")
        now = self.server_now()
        heard_at = now if self.beats else NOON + timedelta(seconds=self.silent_since)
        facts: dict[str, Any] = dict.fromkeys(SeenNode._fields)
        facts |= {"node_id": "n1", "kind": "worker", "queues": '["q"]', "heartbeat_at": heard_at, "now": now}
        return Reading(self.now, self.now, now, (SeenNode(**facts),))

    def server_now(self) -> datetime:
        return NOON + timedelta(seconds=self.now + self.jumped)

    def look_at(self, queues: Iterable[str]) -> Mapping[str, QueueConsumers]:
        if self.broker_is_away:
            raise OSError("the broker is away")
        return {queue: QueueConsumers(**{"counted_at": self.now, "roll": None, **self.found}) for queue in queues}

    def answered(self) -> int:
        """Let all that was asked be answered; how much that was."""
        asks, self.asks[:] = list(self.asks), []
        for ask in asks:
            ask()
        return len(asks)

    def lease(self, published: float, copied: float | None = None) -> HeldLease:
        facts: dict[str, Any] = dict.fromkeys(HeldLease._fields)
        at = NOON + timedelta(seconds=published)
        locked_at = at if copied is None else NOON + timedelta(seconds=copied)
        facts |= {"run_id": "run", "claimed_at": at, "published_at": at, "locked_at": locked_at}
        return HeldLease(**{**facts, "now": self.server_now()})

    def ask(self, published: float = -10.0, copied: float | None = None) -> RepublishAnswer | None:
        """Return what may be done with a message that was published then, by what is known now."""
        return self.bystanders.may_republish("q", self.lease(published, copied), self.now)

    def may(self, published: float = -10.0, copied: float | None = None) -> RepublishAnswer | None:
        """Answer the same when all have been asked, and the living have sent a heartbeat."""
        for _ in range(3):
            may = self.ask(published, copied)
            self.answered()
            self.now += 1.0
            if may is not None:
                break
        return may


def test_a_message_is_published_again_where_everybody_keeps_leases_and_nothing_waits() -> None:
    house = House()
    assert house.may() is RepublishAnswer.PUBLISH
    house.found["waiting"] = 3
    house.now += 100
    assert house.may() is RepublishAnswer.WAIT
    assert house.bystanders.withheld == {"q": "3 messages wait in it, and it may be one of them"}


def test_what_waits_itself_is_left_there_and_what_is_not_among_the_waiting_is_published_again() -> None:
    house = House()
    house.found |= {"waiting": 2, "waiting_runs": frozenset({"another", "run"})}
    assert house.may() is RepublishAnswer.WAIT
    house.now += 100
    house.found |= {"waiting_runs": frozenset({"another"})}
    assert house.may() is RepublishAnswer.PUBLISH
    assert not house.bystanders.withheld


def test_nothing_is_known_before_somebody_has_looked_nor_where_nobody_can() -> None:
    house = House()
    assert house.ask() is None
    house.found = {"roll": None}
    assert house.may() is RepublishAnswer.WAIT


def test_a_worker_that_was_not_heard_of_since_is_waited_for() -> None:
    house = House()
    house.beats = False
    assert house.may() is None
    house.beats = True
    assert house.may() is RepublishAnswer.PUBLISH


def test_a_stranger_is_believed_in_at_the_second_look_and_what_he_may_have_taken_is_never_sent_again() -> None:
    house = House()
    house.found["consumers"] = 2
    assert house.may(-10) is None
    house.now += 5
    assert house.may(-10) is RepublishAnswer.WAIT
    house.found["consumers"] = 1
    house.now += 100
    assert house.may(-10) is RepublishAnswer.WAIT, "he may be busy with it"
    assert house.may(60) is RepublishAnswer.PUBLISH, "he was gone when it was sent"


def test_who_is_there_for_a_moment_is_no_stranger() -> None:
    house = House()
    house.found["consumers"] = 2
    assert house.may() is None
    house.found["consumers"] = 1
    house.now += 5
    assert house.may() is RepublishAnswer.PUBLISH


def test_who_was_there_and_could_not_be_looked_for_soon_after_may_have_the_message() -> None:
    house = House()
    house.found["consumers"] = 2
    assert house.may() is None
    house.found["consumers"] = 1
    house.now += 5
    house.broker_is_away = True
    assert house.may() is None
    house.broker_is_away = False
    house.now += 30
    assert house.may() is RepublishAnswer.WAIT


def test_a_worker_without_the_extension_is_left_alone_with_the_message_and_remembered() -> None:
    house = House()
    house.found["roll"] = (OURS, PLAIN)
    assert house.may() is RepublishAnswer.LEAVE
    house.found["roll"] = (OURS,)
    house.now += 100
    assert house.may() is RepublishAnswer.WAIT


def test_where_nobody_counts_a_worker_without_the_extension_is_remembered_as_long_as_all_workers_are() -> None:
    house = House()
    house.found = {"roll": (OURS, PLAIN)}
    assert house.may() is RepublishAnswer.LEAVE
    house.found = {"roll": (OURS,)}
    house.now += MEMORY / 2
    assert house.may(house.now - 10) is RepublishAnswer.WAIT
    house.now += MEMORY
    assert house.may(house.now - 10) is RepublishAnswer.PUBLISH


def test_what_one_beat_has_seen_counts_for_all_and_after_its_end() -> None:
    first = House()
    first.found["roll"] = (PLAIN,)
    assert first.may(-1) is RepublishAnswer.LEAVE
    second = House()
    second.rows = [first.told[KEY](), {"q": "no instant"}, {"q": 7}]
    assert second.may(-10) is RepublishAnswer.WAIT
    second.now = 20.0
    assert second.may(10) is RepublishAnswer.PUBLISH


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
    assert house.may(10) is RepublishAnswer.WAIT, "somebody was there at the second look"
    assert house.may(40) is RepublishAnswer.PUBLISH


def test_where_no_message_is_ever_published_again_nobody_is_asked() -> None:
    house = House(never=True)
    house.bystanders.watch(["q"])
    assert house.may() is RepublishAnswer.WAIT
    assert house.answered() == 0


def test_only_who_is_known_to_be_there_counts_where_a_task_is_unknown_to_all_others() -> None:
    house = House()
    assert house.bystanders.consume(None) is True
    assert house.bystanders.consume("q") is None
    house.answered()
    assert house.bystanders.consume("q") is False
    house.beats = False
    house.now += 1
    assert house.bystanders.consume("q") is False
    house.now += 90
    assert house.bystanders.consume("q") is None
    house.answered()
    assert house.bystanders.consume("q") is True, "the worker that was there is gone"


def test_a_look_that_is_older_than_the_message_is_no_evidence() -> None:
    house = House()
    house.bystanders.watch(["q"])
    house.answered()
    house.now = 20.0
    house.found["consumers"] = 2
    assert house.may(10) is None, "somebody came after the look, and before the message"
    house.now += 5
    assert house.may(10) is RepublishAnswer.WAIT


def test_a_look_that_is_older_than_the_last_copy_is_no_evidence() -> None:
    house = House()
    assert house.may() is RepublishAnswer.PUBLISH
    house.now = 20.0
    house.found["consumers"] = 2
    assert house.may(copied=10) is None, "somebody came after the look, and took the copy"
    house.now += 5
    assert house.may(copied=10) is RepublishAnswer.WAIT


@pytest.mark.parametrize("written", [None, "yesterday"])
def test_what_somebody_wrote_into_locked_at_by_hand_stops_nothing(written: Any) -> None:
    house = House()
    house.may()
    lease = house.lease(-10)._replace(locked_at=written)
    assert house.bystanders.may_republish("q", lease, house.now) is RepublishAnswer.PUBLISH


def test_a_look_from_before_the_servers_clock_was_set_is_no_evidence() -> None:
    house = House()
    house.bystanders.watch(["q"])
    house.answered()
    house.jumped = -30.0
    house.found["consumers"] = 2
    house.now = 20.0
    assert house.may(-15) is None, "by the clock it was published before the look, and it was not"
    house.now += 5
    assert house.may(-15) is RepublishAnswer.WAIT


def test_a_slow_answer_makes_no_message_younger() -> None:
    house = House()
    house.found = {"roll": (), "clients": (Client("h:9", False, 25.0),)}
    house.now = 30.0
    house.beats = False
    lease = house.lease(0.0)
    assert house.bystanders.may_republish("q", lease, 30.0) is None
    house.answered()
    house.now = 40.0  # the database's answer is on its way for as long
    assert house.bystanders.may_republish("q", lease, 30.0) is None, "the worker may have the message"
    house.now = 31.0
    assert house.may(10.0) is RepublishAnswer.PUBLISH, "it is busy since before the message"


def test_a_worker_whose_heartbeat_lies_in_the_future_is_not_known_to_live() -> None:
    house = House()
    house.beats, house.silent_since = False, 60.0
    house.now = 10.0
    for _ in range(2):
        assert house.may(0) is None
        house.now += 5
    house.now = 150.0
    assert house.may(140) is None
    house.now += 5
    assert house.may(140) is RepublishAnswer.WAIT, "whoever consumes the queue is somebody else"


def test_a_database_that_is_away_keeps_no_beat_from_recording_what_it_has_sent() -> None:
    house = House()
    house.is_away = True
    house.bystanders.watch(["q"])
    assert house.answered() == 0


def test_what_the_look_before_could_not_see_is_noted_with_the_next_one() -> None:
    house = House()
    house.found = {"roll": (OURS,), "clients": ()}
    house.bystanders.watch(["q"])
    house.answered()
    house.now = 30.0
    house.found["clients"] = (Client("h:1", False, 500.0), Client("h:9", False, 20.0))
    house.bystanders.watch(["q"])
    house.answered()
    house.now = 60.0
    house.found["clients"] = ()
    house.bystanders.watch(["q"])
    house.answered()
    house.now = 70.0
    assert house.may(5) is RepublishAnswer.WAIT, "a worker took something ten seconds after the first look, and is gone"


def test_a_question_that_failed_is_asked_again_and_decides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    house.broker_is_away = True
    asked = 0
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            assert house.ask() is None, "the message has its chance once the broker is back"
            asked += house.answered()
            house.now += 0.5
    assert asked == 5, "every two seconds"
    assert [vars(record)["topic"] for record in caplog.records] == ["consumers of q"]
    house.broker_is_away = False
    house.now += 2
    assert house.may() is RepublishAnswer.PUBLISH


def test_a_broker_that_can_never_be_asked_keeps_no_message_for_longer_than_an_hour() -> None:
    house = House()
    house.broker_is_away = True
    while house.now < 3600:
        assert house.ask() is None
        house.answered()
        house.now += 10
    assert house.may() is RepublishAnswer.WAIT
    house.now += 3600
    house.broker_is_away = False
    assert house.ask() is None, "who can be asked now is not known yet"
    assert house.may() is RepublishAnswer.PUBLISH


def test_the_look_before_a_question_that_failed_is_the_last_one() -> None:
    house = House()
    house.found = {"roll": (OURS,), "clients": ()}
    house.bystanders.watch(["q"])
    house.answered()
    house.now, house.broker_is_away = 30.0, True
    house.bystanders.watch(["q"])
    house.answered()
    house.now, house.broker_is_away = 60.0, False
    house.found["clients"] = (Client("h:1", False, 500.0), Client("h:9", False, 50.0))
    house.bystanders.watch(["q"])
    house.answered()
    house.now = 90.0
    house.found["clients"] = ()
    house.bystanders.watch(["q"])
    house.answered()
    assert house.may(5) is RepublishAnswer.WAIT, "a worker took something before the question that failed, and is gone"


def test_a_look_is_dated_by_its_own_question_whatever_is_asked_after_it() -> None:
    house = House()
    assert house.ask() is None
    house.bystanders.watch(["q", "other"])  # while the first question is under way
    assert house.ask() is None
    house.answered()
    house.now = 20.0
    house.bystanders.watch(["other"])
    assert house.ask(10) is None, "the only look at this queue is older than the message"
    assert house.ask(10) is None


def test_what_a_look_has_found_is_dated_by_the_clock_as_it_was_then() -> None:
    house = House()
    house.found["consumers"] = 2
    house.now = 30.0
    house.bystanders.watch(["q"])
    house.answered()
    house.found["consumers"] = 1
    house.now, house.jumped = 60.0, -100.0
    house.bystanders.watch(["q"])
    house.answered()
    house.now = 120.0
    assert house.may(10) is RepublishAnswer.WAIT, "somebody was there after the message, before the clock was set back"


def test_who_was_seen_before_the_clock_was_set_back_is_not_forgotten_for_who_is_seen_after_it() -> None:
    house = House()
    house.found["roll"] = (OURS, PLAIN)
    house.now = 30.0
    assert house.may(20) is RepublishAnswer.LEAVE
    house.now, house.jumped = 70.0, -60.0
    assert house.may(5) is RepublishAnswer.LEAVE, "by the new clock this is earlier than the message of 20"
    house.found["roll"], house.now = (OURS,), 150.0
    assert house.may(20) is RepublishAnswer.WAIT, "the first one has it, and his task may go on"

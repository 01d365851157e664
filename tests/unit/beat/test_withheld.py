"""Claims whose task nobody knows: held back, and ended in time; all others are sent."""

from typing import Any, cast

import pytest

from celery_sqlbeat.beat.membership import BeatMembership
from celery_sqlbeat.beat.republish_evidence import RepublishEvidence
from celery_sqlbeat.beat.withheld import UnknownTasks
from celery_sqlbeat.errors import DatabaseUnavailable
from celery_sqlbeat.model import Claim
from celery_sqlbeat.model.lifecycle import SKIPPED, UNKNOWN_TASK
from celery_sqlbeat.store.records import Guard, Recorded, Release
from tests.support.claims import claim


class Desk:
    """Standing, store and bystanders in one."""

    def __init__(self, timeout: float = 3600.0) -> None:
        self.time = 0.0
        self.unknown = {"app.new"}
        self.knowers: set[str] = set()
        self.others: bool | None = False
        self.raises: Exception | None = None
        self.by_run: dict[str, Claim] = {}
        self.held: list[tuple[Claim, str, float]] = []
        self.skipped: list[Claim] = []
        me: Any = self
        self.unknown_tasks = UnknownTasks(
            me,
            cast(BeatMembership, self),
            lambda each: each.options.get("queue", "celery"),
            timeout,
            cast(RepublishEvidence, self),
            lambda: self.time,
            lambda: 1.0,
        )

    def lacks(self, task: str) -> bool:
        if self.raises is not None:
            raise self.raises
        return task in self.unknown

    def nobody_knows(self, queue: str | None, task: str) -> bool:
        return task in self.unknown and queue == "celery"

    def somebody_knows(self, queue: str | None, task: str) -> bool:
        return task in self.knowers and queue == "celery"

    def consume(self, queue: str | None) -> bool | None:
        return self.others

    def finish(self, releases: list[Release], guard: Guard) -> Recorded:
        assert guard is Guard.UNSTARTED
        for end in releases:
            assert end.ending.reason == UNKNOWN_TASK
            claim = self.by_run[end.run_id]
            if end.ending.state == SKIPPED:
                self.skipped.append(claim)
            else:
                self.held.append((claim, UNKNOWN_TASK, end.ending.retry_seconds or 0.0))
        return Recorded({end.run_id for end in releases}, set())

    def sift(self, *claims: Claim) -> list[Claim]:
        self.by_run |= {each.run_id: each for each in claims}
        return self.unknown_tasks.sift(claims)


def waiting(seconds: float, task: str = "app.new") -> Claim:
    """Return a claim of a slot that was given back before, and is so old."""
    found = claim(task)
    return found._replace(slot=found.slot._replace(unknown_seconds=seconds))


def test_what_nobody_knows_is_given_back_and_all_else_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    desk, known, new, elsewhere = Desk(), claim("app.known"), claim("app.new"), claim("app.new", queue="other")
    for _ in range(3):
        assert desk.sift(known, new, elsewhere) == [known, elsewhere]
    assert desk.held == [(new, UNKNOWN_TASK, 10.0)] * 3
    assert caplog.text.count("its slots wait for one") == 1
    desk.unknown.clear()
    assert desk.sift(new) == [new]


def test_a_worker_without_the_package_may_know_the_task() -> None:
    desk, new = Desk(), claim("app.new")
    desk.others = True
    assert desk.sift(new) == [new]
    desk.others = None  # the workers are being asked
    assert desk.sift(new) == [] and desk.held[-1][2] == 2.0


def test_a_slot_that_has_waited_in_vain_ends_once_a_beat_has_known_of_it_for_a_while() -> None:
    """It may be old for another reason, and the worker that knows its task be the next to start."""
    desk, old, young = Desk(timeout=100.0), waiting(500.0), waiting(50.0)
    assert desk.sift(old, young) == [] and not desk.skipped
    desk.time = 9.0
    desk.sift(old, young)
    assert not desk.skipped
    desk.time = 11.0
    desk.sift(old, young)
    assert desk.skipped == [old]
    desk.unknown.clear()  # one that a worker returned ends as well, whatever is known of its queue
    assert desk.sift(young._replace(slot=young.slot._replace(unknown_seconds=100.0))) == []
    assert len(desk.skipped) == 2


def test_no_slot_ends_while_a_living_worker_of_its_queue_knows_its_task(caplog: pytest.LogCaptureFixture) -> None:
    desk, old = Desk(timeout=4.0), waiting(500.0)
    desk.unknown, desk.knowers = set(), {"app.new"}
    for at in range(5):
        desk.time = 10.0 * at
        assert desk.sift(old) == [old]
    assert not desk.skipped and not desk.held
    assert caplog.text.count("is sent until one takes it") == 1
    desk.knowers = set()
    assert desk.sift(old) == [] and desk.skipped == [old]


def test_a_short_time_out_is_looked_at_often_enough() -> None:
    desk = Desk(timeout=4.0)
    desk.sift(claim("app.new"))
    assert desk.held[-1][2] == 1.0


def test_thousands_of_them_do_not_keep_a_beat_busy() -> None:
    desk = Desk()
    desk.sift(*(claim("app.new") for _ in range(5000)))
    assert desk.held[0][2] == 100.0


def test_while_it_is_not_known_who_is_there_everything_is_sent() -> None:
    desk, new = Desk(), claim("app.new")
    desk.raises = DatabaseUnavailable("away")
    assert desk.sift(new) == [new] and not desk.held

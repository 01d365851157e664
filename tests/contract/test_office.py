"""The office of a worker beside a real event loop of kombu: who asks the database, and from when on."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from kombu.asynchronous import Hub

from celery_sqlbeat.config import read_settings
from celery_sqlbeat.model import Node
from celery_sqlbeat.worker.answers import Answer, Begun
from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.header import Header
from celery_sqlbeat.worker.loops import PipedLoop
from celery_sqlbeat.worker.office import Office
from tests.contract.conftest import Place
from tests.contract.world import World

PATIENCE = 30.0  # seconds


class Desk:
    """An office, the loop that a test turns in its own thread, and runs that begin and end."""

    def __init__(self, world: World, place: Place) -> None:
        conf = {"sqlbeat_database_url": place.address, "sqlbeat_namespace": world.namespace}
        self.world = world
        self.hub = cast(Any, Hub)()
        self.turns = self.hub.create_loop()
        self.loop = PipedLoop()
        self.loop.join(self.hub)
        self.office = Office(read_settings(conf, {}), lambda: Node("worker-1", "worker", "here", 1, "0"), True)

    def turn_until(self, condition: Callable[[], bool]) -> None:
        """Let the loop do what it has to."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end
            self.hub.call_later(0.01, lambda: None)
            next(self.turns)

    def open(self) -> None:
        """Until the database has answered for the first time."""
        self.office.open()
        self.turn_until(lambda: self.office.keeper is not None)

    def run_one(self) -> tuple[int, int]:
        """A run from its question to its outcome: which threads took the answer to either."""
        name = self.world.add()
        (claim,) = self.world.claim().claims
        store_id = self.world.store.nodes().identity()[0]
        request = self.world.request(claim)
        header = Header(store_id, self.world.namespace, claim.run_id, claim.claim_id, claim.fence, 0)
        answers: list[tuple[Answer, int]] = []
        written: list[tuple[bool, int]] = []
        self.office.ask(header, request, lambda answer: answers.append((answer, threading.get_ident())))
        self.turn_until(lambda: bool(answers))
        ((answer, asked_by),) = answers
        assert isinstance(answer, Begun) and answer.holding.take()
        self.office.finish(answer.holding, End.SUCCESS, then=lambda how: written.append((how, threading.get_ident())))
        self.turn_until(lambda: bool(written))
        assert written[0][0] and self.world.states(name) == ["success"]
        return asked_by, written[0][1]

    def close(self) -> None:
        self.office.leave()
        self.office.close()
        self.hub.close()
        self.loop.close()


@pytest.fixture
def desk(world: World, place: Place) -> Iterator[Desk]:
    made = Desk(world, place)
    yield made
    made.close()


@pytest.mark.parametrize("when", ["before the database answers", "after the database has answered"])
def test_the_loop_asks_where_the_database_answers_later(desk: Desk, place: Place, when: str) -> None:
    if when.startswith("before"):
        desk.office.join(desk.loop)
    desk.open()
    if when.startswith("after"):
        desk.office.join(desk.loop)
    desk.run_one()  # a thread connects
    asked_by, written_by = desk.run_one()
    assert {asked_by == threading.get_ident(), written_by == threading.get_ident()} == {place.dialect().answers_later}


def test_where_the_loop_has_ended_a_thread_goes_on(desk: Desk) -> None:
    desk.open()
    desk.office.join(desk.loop)
    desk.run_one()
    desk.office.leave()
    asked_by, written_by = desk.run_one()
    assert threading.get_ident() not in (asked_by, written_by)


def test_a_loop_that_ended_before_the_database_answered_does_not_begin_to_ask(desk: Desk) -> None:
    desk.office.join(desk.loop)
    desk.office.leave()
    desk.open()
    desk.run_one()
    asked_by, written_by = desk.run_one()
    assert threading.get_ident() not in (asked_by, written_by)

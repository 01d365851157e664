"""A beat as a process of a simulation.

The real parts, put together by the real assembly, ticking over and over.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, cast

from celery_sqlbeat.beat.build import BeatParts, build_beat
from celery_sqlbeat.beat.duties import Duties
from celery_sqlbeat.beat.recording import Answer
from celery_sqlbeat.celery_bridge.inspect_workers import QueueConsumers
from celery_sqlbeat.environment import Ids, Machine
from celery_sqlbeat.errors import BrokerUnavailable, DatabaseUnavailable, SqlbeatError
from celery_sqlbeat.store.faults import Breaker
from celery_sqlbeat.store.records import Recorded
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.store import SqlStore
from tests.simulation.broker import QUEUE, Publisher
from tests.simulation.copy_checks import Looked
from tests.simulation.database import Link
from tests.simulation.hub import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 10.0  # seconds, after a tick that failed
_ERROR_WAIT = 1.0


class Host(Process):
    """A process with a link to the database, a wall clock of its own and its own chance."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world.hub, name)
        self.world = world
        self.rng: Random = world.rng
        self.skew = 0.0
        self.link = Link(world.server, self, world.settings.statement_timeout)
        self.link.on_answer = self.reached
        self.ids = Ids(world.rng.randbytes, lambda: int(1000 * (world.start.timestamp() + world.hub.now)))
        self.machine = Machine(self.clock, self.wall, self.rng.random, self.ids)

    def wall(self) -> Any:
        """Return the clock of this host, which may be wrong."""
        return self.world.wall(self.skew)

    def kill(self) -> None:
        """SIGKILL."""
        if self.alive:
            self.world.died(self)
        super().kill()

    def ask_to_end(self) -> None:
        """SIGTERM."""

    def reached(self) -> None:
        """Note that the database answered."""

    def database(self) -> Database:
        """Return a way to the database of its own: sessions, breaker and patience."""
        return Database(
            self.link,
            self.world.settings.statement_timeout,
            Breaker(self.clock, self.rng.random, self.world.settings.heartbeat_interval / 2),
            self.sleep,
            self.rng.random,
            self.clock,
        )


class Beat(Host):
    """One beat."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self._publisher = Publisher(world.broker, self, self.wall)
        self._store = SqlStore(self.database(), world.namespace)
        self._parts: BeatParts | None = None
        self._failures = 0
        self._ends = False
        self.back_at = -1.0
        """When this beat reached the database again after it had not."""
        self._is_cut_off = False
        self.start(self._main)

    def ask_to_end(self) -> None:
        """SIGTERM: it waits for the end of the tick."""
        self._ends = True

    def _main(self) -> None:
        while not self._ends:
            self.sleep(min(self._guarded(self._tick), self.world.settings.poll_interval))
        if self._parts is not None:
            self._parts.dispatcher.hand_over()
            self._guarded(self._say_stopped)
        self.kill()

    def _do(self, duties: Duties) -> None:
        """Do what a thread of a beat does."""
        while not self._ends:
            self.sleep(duties())

    def _say_stopped(self) -> float:
        assert self._parts is not None
        self._parts.membership.say_stopped()
        return 0.0

    def _guarded(self, step: Callable[[], float]) -> float:
        """Do what the scheduler does around a tick."""
        try:
            seconds = step()
        except SqlbeatError as error:
            self._failures += 1
            self._is_cut_off = self._is_cut_off or isinstance(error, DatabaseUnavailable)
            longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(self._failures - 1, 10))
            return longest * (0.5 + 0.5 * self.rng.random())
        except Exception as error:
            self.world.unexpected(self, error)
            return _ERROR_WAIT
        self._failures = 0
        return seconds

    def reached(self) -> None:
        """Note that the database answered."""
        if self._is_cut_off:
            self._is_cut_off, self.back_at = False, self.hub.now

    def _tick(self) -> float:
        if self._parts is None:
            publisher = cast(Any, self._publisher)
            world = self.world
            self._parts = build_beat(
                world.app,
                world.settings,
                self._store,
                publisher,
                {},
                {},
                self._look_at,
                machine=self.machine,
                in_thread=self.start,
                begin_record=self._begin_record,
            )
            for duties in self._parts.background:
                self.start(partial(self._do, duties))
        return self._parts.tick()

    def _begin_record(self, statement: Answer) -> Answer:
        """Make a statement in a thread, with a link of its own to the database."""
        answers: list[Answer] = []

        def run() -> None:
            try:
                recorded = statement()
            except SqlbeatError as error:
                answers.append(partial(_raise, error))
            else:
                answers.append(lambda: recorded)

        def answer() -> Recorded:
            while not answers:
                self.sleep(0.001)
            return answers[0]()

        self.start(run)
        return answer

    def _look_at(self, queues: Iterable[str]) -> Mapping[str, QueueConsumers]:
        """In a thread: ask all workers, and then the broker; each of them may take its time."""
        broker, rng, asked_at = self.world.broker, self.rng, self.hub.now
        self._be_connected()
        there = {one for one in self.world.plains if one.consumes_from(QUEUE)}
        self.sleep(rng.random())
        roll = tuple(answer for one in broker.consumers if (answer := one.answer()) is not None)
        self.sleep(rng.random())
        self._be_connected()
        self.sleep(_slow(rng))
        found = {queue: broker.count(queue, QueueConsumers(0.0, roll)) for queue in queues}
        waiting = {one.name for one in there if one.has_room()}
        there &= {one for one in self.world.plains if one.consumes_from(QUEUE)}
        self.sleep(_slow(rng))
        self._be_connected()
        names = {answer.name for answer in roll if answer.extension is None}
        # On a broker that shows connections, an answer stands for another one once who gave it has
        # left.
        left = broker.shows_connections and names - {one.name for one in self.world.plains if one.consumes}
        seen = {one.name for one in there if one.name in names or (broker.leaves_nobody_out and not left)}
        busy = seen - names - waiting if broker.shows_connections else set[str]()
        looked = Looked(asked_at, self.hub.now, frozenset(seen), frozenset(busy))
        self.world.witness.copy_checks.looked(self, looked)
        return {queue: look._replace(counted_at=self.clock()) for queue, look in found.items()}

    def _be_connected(self) -> None:
        if self.world.broker.is_unavailable():
            self.sleep(2.0)
            raise BrokerUnavailable("the broker is away")


def _raise(error: Exception) -> NoReturn:
    raise error


def _slow(rng: Random) -> float:
    """How long an answer of the broker takes, in seconds."""
    chance = rng.random()
    return 0.01 * chance if chance < 0.9 else 100.0 * (chance - 0.9)

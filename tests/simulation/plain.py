"""A worker without the extension.

It knows nothing of leases, registers nowhere, and runs whatever it gets.
"""

from collections import deque
from typing import TYPE_CHECKING

from celery_sqlbeat.celery_bridge.inspect_workers import Answer
from tests.simulation.broker import QUEUE, Message
from tests.simulation.hub import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

ELSEWHERE = "elsewhere"  # a queue that nothing of ours is sent to
_FOR_EVER = 1e6  # seconds


class Plain(Process):
    """One plain worker process with its pool."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world.hub, name)
        rng = world.rng
        self.world = world
        self.queue = QUEUE if rng.random() < 0.8 else ELSEWHERE
        self.answers = rng.random() < 0.4
        """Whether it answers when workers are asked: a solo pool, or one without remote control,
        does not."""
        self.consumes = True
        self._late = rng.random() < 0.5
        self._slots = 1 + int(2 * rng.random())
        self._room = self._slots * rng.choice([1, 1, 3])
        self._hangs = rng.choice([0.0, 0.1, 0.5])
        self._waiting: deque[Message] = deque()
        self._running = 0
        self._held = 0
        self._busy_since = world.hub.now if self.queue == ELSEWHERE and rng.random() < 0.5 else None
        world.broker.consumers.append(self)

    @property
    def address(self) -> str:
        """Of its connection."""
        return f"{self.name}:1"

    is_named = False

    # What the broker sees

    def consumes_from(self, queue: str) -> bool:
        """Whether the broker counts it among the consumers of a queue."""
        return self.consumes and queue == self.queue

    def has_room(self) -> bool:
        """Whether it waits for a message."""
        return self.consumes and self._busy_since is None and self._held < self._room

    def idle_seconds(self) -> float:
        """Since it took its last message, where it does not wait for another one."""
        return 0.0 if self.has_room() or self._busy_since is None else self.hub.now - self._busy_since

    def takes(self, queue: str) -> bool:
        """Whether it takes a message now."""
        return self.alive and queue == self.queue and self.has_room() and self.hub.now >= self.stopped_until

    def receive(self, message: Message) -> None:
        """Take a message."""
        self.world.witness.copy_checks.took(self, message)
        self._waiting.append(message)
        self._held += 1
        self._fill()
        self._next()

    def _fill(self) -> None:
        is_full = self._held >= self._room
        self._busy_since = self.hub.now if is_full else None

    def disconnected(self) -> None:
        """Its connection is lost: what it has not begun goes to others, and what runs goes on."""
        self._held -= len(self._waiting)
        self._waiting.clear()
        self._fill()

    def answer(self) -> Answer | None:
        """Return what it says where all workers are asked."""
        speaks = self.alive and self.answers and self.hub.now >= self.stopped_until
        return Answer(self.name, frozenset({self.queue}), None) if speaks and self.consumes else None

    # The pool

    def _next(self) -> None:
        while self._running < self._slots and self._waiting:
            message = self._waiting.popleft()
            self._running += 1
            if not self._late:
                self.world.broker.acknowledge(message.number)
            rng, spec = self.world.rng, self.world.ledger.spec_of_run.get(message.run)
            longest = spec.longest if spec is not None else 1.0
            seconds = _FOR_EVER if rng.random() < self._hangs else longest * rng.random()
            self.later(seconds, lambda message=message: self._ends(message))  # type: ignore[misc]

    def _ends(self, message: Message) -> None:
        self.world.ledger.did("plain end")
        self.world.broker.acknowledge(message.number)
        self._running -= 1
        self._held -= 1
        self._fill()
        self._next()
        if not self.consumes and self._running == 0:
            self.kill()
        else:
            self.later(0.0, self.world.broker.hand_out)

    # Ends of the process

    def leave(self) -> None:
        """SIGTERM: take nothing more, give back what has not begun, and let the bodies end."""
        if self.consumes:
            self.consumes = False
            for message in self._waiting:
                self.world.broker.requeue(message.number)
            self._waiting.clear()
            if self._running == 0:
                self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        if self.alive:
            self.consumes = False
            self.world.plains.remove(self)
            self.world.broker.consumers.remove(self)
            self.hub.after(0.01, lambda: self.world.broker.lose(self))
        super().kill()

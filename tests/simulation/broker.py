"""The broker of a simulation: delivers at least once, late, in any order, and sometimes not at all.

Takes the place of sockets and of Celery's producer; what a message says about its claim is made by
the real code.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple, Protocol

from celery_sqlbeat.celery_bridge.inspect_workers import Answer, Client, QueueConsumers
from celery_sqlbeat.errors import BrokerUnavailable
from celery_sqlbeat.model import Claim
from celery_sqlbeat.publish import messages
from celery_sqlbeat.publish.publisher import Published, Refused, Sending
from celery_sqlbeat.publish.sender import Sent
from tests.simulation.hub import Hub, Process

QUEUE = "celery"  # consumed by workers with the extension, if any live
VANILLA = "vanilla"  # consumed by nobody of ours: fired and forgotten
BROKEN = "broken"  # of a job: a serializer that takes its arguments now and then only
_VANISHED = "the connection to the broker was lost"
_NO_TIME = "no time was left to publish it"
_REDELIVERED_AFTER = 0.5  # seconds
_LATEST = 60.0  # seconds that a message may be on its way


class Message(NamedTuple):
    """What a worker gets."""

    number: int
    run: str
    claim: str
    fence: int
    queue: str
    retries: int
    eta: float | None
    store: str
    namespace: str
    job_name: str
    life_seconds: float | None = None


class Consumer(Protocol):
    """A worker, as the broker sees it."""

    @property
    def address(self) -> str:
        """Of its connection."""

    @property
    def is_named(self) -> bool:
        """Whether its connection bears the name of a worker that keeps leases."""

    def takes(self, queue: str) -> bool:
        """Whether it lives, is connected, consumes the queue and has room."""

    def consumes_from(self, queue: str) -> bool:
        """Whether it is counted among the consumers of a queue."""

    def has_room(self) -> bool:
        """Whether it waits for a message."""

    def idle_seconds(self) -> float:
        """Since it took its last message, where it waits for none."""

    def answer(self) -> Answer | None:
        """Return what it says where all workers are asked; None where it says nothing."""

    def disconnected(self) -> None:
        """Its connection is lost, and there is another one at once."""

    def receive(self, message: Message) -> None:
        """Take a message."""


class Post(Protocol):
    """Who is told of messages."""

    def published(self, process: Process, message: Message) -> None:
        """Note that a process hands a message to the broker."""

    def refused(self, run_id: str, fence: int) -> None:
        """No message can be made of a claim."""

    def unconfirmed(self, run_id: str, fence: int) -> None:
        """Note that its sender cannot know whether the broker has a message."""

    def delivered(self, message: Message) -> None:
        """Note that a worker gets a message."""


class Broker:
    """Queues, and who consumes them."""

    def __init__(self, hub: Hub, rng: Random, post: Post) -> None:
        self.hub = hub
        self.rng = rng
        self.post = post
        self.away_until = -1.0
        self.loses_until = -1.0
        self.doubles_until = -1.0
        self.swallows_until = -1.0
        self.delays_until = -1.0
        self.consumers: list[Consumer] = []
        self.waiting: list[Message] = []
        self.unacknowledged: dict[int, tuple[Message, Consumer]] = {}
        self.in_flight: list[Callable[[Process], object]] = []
        """What happens to the next beat that publishes, while it does."""
        self._deliveries = 0
        self._numbers = 0
        self._upgrades = rng.random() < 0.5
        """Whether a worker that nobody knew of as one of ours takes some of what was fired and
        forgotten."""
        self._counts = rng.choice(["consumers", "consumers", "clients", "clients", "nothing"])

    def is_unavailable(self) -> bool:
        """Whether nobody reaches it."""
        return self.hub.now < self.away_until

    def number(self) -> int:
        """Return a number for a message."""
        self._numbers += 1
        return self._numbers

    def put(self, message: Message, seconds: float = 0.0) -> None:
        """Take a message; it may arrive late, twice, or out of order."""
        if self.hub.now < self.swallows_until:
            return
        delay = self.rng.random() * (_LATEST if self.hub.now < self.delays_until else 0.01)
        self.hub.after(seconds + delay, lambda: self._arrive(message))
        if self.hub.now < self.doubles_until and self.rng.random() < 0.5:
            self.hub.after(seconds + self.rng.random() * _LATEST, lambda: self._arrive(message))

    def _arrive(self, message: Message) -> None:
        self.waiting.append(message)
        self.hand_out()

    def hand_out(self) -> None:
        """Give what waits to those that have room, each to anyone."""
        if not self.waiting:
            return
        if self.is_unavailable():
            self.hub.at(self.away_until + 0.01, self.hand_out)
            return
        kept = []
        for message in self.waiting:
            is_plain = message.queue == VANILLA and not (self._upgrades and message.number % 2)
            ready = [] if is_plain else [one for one in self.consumers if one.takes(message.queue)]
            if is_plain:
                self.post.delivered(message)  # by a worker that is none of ours
            elif ready:
                self._deliver(message, ready[int(self.rng.random() * len(ready))])
            else:
                kept.append(message)
        self.waiting = kept

    def _deliver(self, message: Message, consumer: Consumer) -> None:
        self._deliveries += 1
        tag = self._deliveries
        self.unacknowledged[tag] = (message, consumer)
        self.post.delivered(message)
        consumer.receive(message._replace(number=tag))

    def acknowledge(self, tag: int) -> None:
        """End a delivery for a worker, unless it has no connection to say so."""
        if not self.is_unavailable():
            self.unacknowledged.pop(tag, None)

    def requeue(self, tag: int, seconds: float = 0.0) -> None:
        """Give a delivery back."""
        found = self.unacknowledged.pop(tag, None)
        if found is not None:
            self.put(found[0], seconds)

    def lose(self, consumer: Consumer) -> None:
        """Lose the connection of a worker: others get what it did not acknowledge."""
        consumer.disconnected()
        for tag in [tag for tag, (_, holder) in self.unacknowledged.items() if holder is consumer]:
            self.requeue(tag, _REDELIVERED_AFTER)

    @property
    def leaves_nobody_out(self) -> bool:
        """Whether it counts who consumes a queue, or shows who takes messages from any."""
        return self._counts != "nothing"

    @property
    def shows_connections(self) -> bool:
        """Whether it shows who takes messages from any queue, and counts nobody."""
        return self._counts == "clients"

    def count(self, queue: str, look: QueueConsumers) -> QueueConsumers:
        """Return what it says of a queue.

        RabbitMQ counts consumers, Redis shows connections, others say nothing.
        """
        waiting = sum(message.queue == queue for message in self.waiting)
        if self._counts == "consumers":
            return look._replace(waiting=waiting, consumers=sum(one.consumes_from(queue) for one in self.consumers))
        if self._counts == "clients":
            clients = tuple(
                Client(one.address, one.has_room(), float(int(one.idle_seconds())), one.is_named)
                for one in self.consumers
            )
            runs = frozenset(message.run for message in self.waiting if message.queue == queue)
            return look._replace(waiting=waiting, waiting_runs=runs, clients=clients)
        return look

    def go_away(self, seconds: float) -> None:
        """Be out of reach for a while; all connections are lost."""
        self.away_until = max(self.away_until, self.hub.now + seconds)
        for consumer in self.consumers:
            self.lose(consumer)
        self.hub.at(self.away_until + 0.01, self.hand_out)


class Publisher:
    """What a beat publishes with, in the place of kombu's producer."""

    def __init__(self, broker: Broker, process: Process, wall: Callable[[], datetime]) -> None:
        self._broker = broker
        self._wall = wall
        self._process = process
        self._store = self._namespace = ""

    def identify(self, store_id: str, namespace: str) -> None:
        """For whom the messages are."""
        self._store, self._namespace = store_id, namespace

    def connect(self, seconds: float) -> None:
        """Be connected, or raise BrokerAway after a while."""
        if self._broker.is_unavailable():
            self._process.sleep(seconds)
            raise BrokerUnavailable("the broker is away")

    is_watched = False

    def publish(self, claims: Sequence[Claim], until: float) -> Published:
        """Publish each of the claims that there is time for."""
        return self.send(claims, until)()

    def send(
        self, claims: Sequence[Claim], until: float, leases: Callable[[str | None], bool] = lambda _: True
    ) -> Sending:
        """Hand over each of the claims that there is time for.

        What the broker says of them comes later.
        """
        published = Published([], [], [], [])
        self._meet_fault()
        for claim in claims:
            self._process.sleep(0.0005 + 0.002 * self._broker.rng.random())
            if self._process.clock() >= until:
                published.failed.append((claim, _NO_TIME))
            elif claim.options.get("serializer") == BROKEN and self._broker.rng.random() < 0.7:
                self._broker.post.refused(claim.run_id, claim.fence)
                published.refused.append(Refused(claim, "EncodeError", "Traceback"))
            elif (failure := self._send(claim)) is not None:
                published.failed.append((claim, failure))
            else:
                countdown, life = claim.options.get("countdown", 0.0), self._life(claim)
                queue = self.queue_of(claim)
                is_leased = claim.exclusive and leases(queue)
                published.confirmed.append(Sent(claim, queue, is_leased, countdown, life))

        def await_confirms() -> Published:
            self._meet_fault()
            self._process.sleep(0.001 * self._broker.rng.random())
            if self._broker.is_unavailable():
                unconfirmed = [(sent.claim, _VANISHED) for sent in published.confirmed]
                for claim, _ in unconfirmed:
                    self._broker.post.unconfirmed(claim.run_id, claim.fence)
                return published._replace(confirmed=[], failed=[*published.failed, *unconfirmed])
            return published

        return await_confirms

    def _meet_fault(self) -> None:
        """Before a batch is published, or between that and the record of it."""
        faults = self._broker.in_flight
        if faults and self._broker.rng.random() < 0.5:
            faults.pop()(self._process)

    def _send(self, claim: Claim) -> str | None:
        broker, now = self._broker, self._broker.hub.now
        if broker.is_unavailable():
            return _VANISHED
        header: dict[str, Any] = messages.header(claim, self._store, self._namespace)["sqlbeat"]
        countdown = claim.options.get("countdown")
        message = Message(
            broker.number(),
            header["run"],
            header["claim"],
            header["fence"],
            self.queue_of(claim) or QUEUE,
            0,
            None if countdown is None else now + countdown,
            header["store"],
            header["namespace"],
            claim.job_name,
            self._life(claim),
        )
        chance = broker.rng.random() if now < broker.loses_until else 1.0
        if chance < 0.3:
            return _VANISHED
        broker.post.published(self._process, message)
        broker.put(message)
        if chance < 0.6:
            broker.post.unconfirmed(claim.run_id, claim.fence)
            return _VANISHED
        return None

    def queue_of(self, claim: Claim) -> str | None:
        """Return the queue of a claim's message."""
        queue: str = claim.options.get("queue", QUEUE)
        return queue

    def expires_at(self, claim: Claim, published_at: datetime) -> datetime | None:
        """When the message of a claim expires."""
        expires = claim.options.get("expires")
        return published_at + timedelta(seconds=expires) if isinstance(expires, (int, float)) else expires

    def _life(self, claim: Claim) -> float | None:
        expires = claim.options.get("expires")
        if isinstance(expires, datetime):
            return max(0.0, (expires - self._wall()).total_seconds())
        return expires

    def close(self) -> None:
        """Nothing to close."""

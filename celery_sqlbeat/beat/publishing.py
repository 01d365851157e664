"""Publishing: a batch of claims becomes messages that the broker confirms, each within its time or not at all."""

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from celery_sqlbeat.beat.blame import cause_of, is_in_the_message
from celery_sqlbeat.beat.brokers import Broker
from celery_sqlbeat.beat.outlets import TIME_UP, Outlet, one_line
from celery_sqlbeat.beat.sending import Declined, Leases, Sender
from celery_sqlbeat.checks import LONGEST_WAIT
from celery_sqlbeat.errors import BrokerAway
from celery_sqlbeat.model import Claim

T = TypeVar("T")

_FLUSH_SECONDS = 0.2  # messages that are slow to make do not wait for each other longer than that
_RECONNECT_SECONDS = 2.0  # a broker that has just answered is there, or it is away
_MOST_REFUSED = 1000  # jobs that are remembered, so that each costs others something but once


def _always(_queue: str | None) -> bool:
    """Everybody keeps leases: what is published again is leased."""
    return True


class Sent(NamedTuple):
    """A message that the broker has."""

    claim: Claim
    queue: str | None
    """None where an exchange alone decides on the queue, or there are several."""
    is_leased: bool
    """Whether it may begin under a lease only; else it was fired and forgotten, and says so."""
    wait_seconds: float
    """So long its countdown or eta holds it back."""
    life_seconds: float | None
    """After so long it expires, if it does."""
    check_in: str | None = None
    """What a monitor has opened for its slot."""

    @property
    def queued_seconds(self) -> float:
        """So long it may wait for its start before somebody looks after it."""
        longest = min(self.claim.lease_seconds + self.wait_seconds, LONGEST_WAIT)
        return longest if self.life_seconds is None else min(longest, self.life_seconds)


class Refused(NamedTuple):
    """A claim that no message can be made of."""

    claim: Claim
    error: str
    traceback: str


class Published(NamedTuple):
    """What became of a batch. What failed may have reached the broker all the same, only nobody heard of it."""

    confirmed: list[Sent]
    failed: list[tuple[Claim, str]]
    declined: list[tuple[Claim, str]]
    """What the shop's own code chose not to send."""
    refused: list["Refused"]
    """What can never be sent as it is. Of these nothing has reached the broker."""


class Sending:
    """A batch on its way: written, and not yet confirmed. Nothing else is sent before it is settled."""

    def __init__(self, settle: Callable[[], Published]) -> None:
        self._settle = settle

    def settle(self) -> Published:
        """Wait for what the broker says of each message, until the time given to the batch is over."""
        return self._settle()


class Publisher:
    """Publishes what stock beat would send for the same entry, with the claim in the headers and the run as task id."""

    def __init__(
        self,
        app: Any,
        apply_entry: Callable[..., Any] | None = None,
        entry_of: Callable[[Claim], Any] | None = None,
        patience: float = 1.0,
    ) -> None:
        """`apply_entry` and `entry_of` are the scheduler's.

        `patience`: seconds that one answer of Redis may take. With less time than that left, nothing is begun.
        """
        self._broker = Broker(app, patience)
        self._sender = Sender(app, apply_entry, entry_of)
        self._refused: set[str] = set()

    def identify(self, store_id: str, namespace: str) -> None:
        """Say for whom the messages are; workers on another store or namespace return them."""
        self._sender.store_id, self._sender.namespace = store_id, namespace

    @property
    def is_watched(self) -> bool:
        """Whether somebody wants to see each entry that is sent, and so may open a check-in for it."""
        return self._sender.is_watched

    def connect(self, seconds: float) -> None:
        """Be connected to the broker within so many seconds, or raise BrokerAway."""
        self._broker.connect(seconds)

    def publish(self, claims: Sequence[Claim], until: float) -> Published:
        """Publish each of the claims; returns before `until`, an instant of the monotonic clock."""
        return self.send(claims, until).settle()

    def send(self, claims: Sequence[Claim], until: float, leases: Leases = _always) -> Sending:
        """Hand the claims to the broker without waiting for its confirmations: the caller has other things to do.

        `leases`: whether who consumes a queue keeps leases. What goes to another one is fired and forgotten.
        """
        suspects = [claim for claim in claims if claim.job_id in self._refused]
        others = [claim for claim in claims if claim.job_id not in self._refused] if suspects else claims
        settle = self._send(others, until, leases)

        def settled() -> Published:
            published = self._isolated(settle(), until, leases)
            self._one_by_one(suspects, until, leases, published)
            return published

        return Sending(settled)

    def _isolated(self, published: Published, until: float, leases: Leases) -> Published:
        if not self._broker.was_refused:
            return published
        # The broker broke off at one of them. What it had taken by then goes out again under the same claim.
        isolated = published._replace(failed=[])
        self._one_by_one([claim for claim, _ in published.failed], until, leases, isolated)
        return isolated

    def _one_by_one(self, claims: Iterable[Claim], until: float, leases: Leases, published: Published) -> None:
        """Let a message that the broker refuses break off nobody else's, and remember its job for the next time."""
        waiting = list(claims)
        while waiting:
            try:
                self._broker.connect(min(max(until - time.monotonic(), 0.0), _RECONNECT_SECONDS))
            except BrokerAway as away:
                published.failed.extend((claim, str(away)) for claim in waiting)
                return
            claim = waiting.pop(0)
            alone = self._send([claim], until, leases)()
            published.confirmed.extend(alone.confirmed)
            published.failed.extend(alone.failed)
            published.declined.extend(alone.declined)
            published.refused.extend(alone.refused)
            if not self._broker.was_refused:
                self._refused.discard(claim.job_id)
            elif len(self._refused) < _MOST_REFUSED:
                self._refused.add(claim.job_id)

    def _send(self, claims: Sequence[Claim], until: float, leases: Leases) -> Callable[[], Published]:
        outlet = self._broker.outlet
        if outlet is None:
            return lambda: Published([], [(claim, "the broker is not connected") for claim in claims], [], [])
        outlet.until = until
        self._sender.sit(outlet, leases)
        sent, failures, declined, refused = self._send_all(claims, outlet)
        outlet.flush()

        def settle() -> Published:
            outlet.until = until
            failures.update(outlet.settle())
            if outlet.broken is None:
                self._broker.answered()
            confirmed = [each for each in sent if each.claim.run_id not in failures]
            failed = [(each, failures[each.run_id]) for each in claims if each.run_id in failures]
            return Published(confirmed, failed, declined, refused)

        return settle

    def _send_all(
        self, claims: Iterable[Claim], outlet: Outlet
    ) -> tuple[list[Sent], dict[str, str], list[tuple[Claim, str]], list[Refused]]:
        sent: list[Sent] = []
        failures: dict[str, str] = {}
        declined: list[tuple[Claim, str]] = []
        refused: list[Refused] = []
        last_flush = time.monotonic()
        for claim in claims:
            now = time.monotonic()
            if outlet.broken is not None or now + outlet.reserve >= outlet.until:
                failures[claim.run_id] = outlet.broken or TIME_UP
                continue
            try:
                destination = self._sender.send(claim, outlet)
            except Declined as error:
                declined.append((claim, str(error)))
            except Exception as error:
                if is_in_the_message(error, outlet.has_turned, outlet.connection_errors):
                    refused.append(_refused(claim, cause_of(error)))
                else:
                    failures[claim.run_id] = one_line(error)
            else:
                sent.append(Sent(claim, *destination))
            if now - last_flush > _FLUSH_SECONDS:
                outlet.flush()
                last_flush = time.monotonic()
        return sent, failures, declined, refused

    def queue_of(self, claim: Claim) -> str | None:
        """The queue that the message of this claim goes to; None where an exchange decides, or no queue is known."""
        return self._sender.queue_of(claim)

    def expires_at(self, claim: Claim, published_at: datetime) -> datetime | None:
        """When the message of this claim expires that was published then; None where it does not."""
        return self._sender.expires_at(claim, published_at)

    def watch(self, send: Callable[[], T]) -> T:
        """For the scheduler's `apply_async`: call what sends an entry, and remember whether it raised."""
        return self._sender.watch(send)

    def close(self) -> None:
        """Close the connection; it is opened again by the next `connect`."""
        self._broker.close()


def _refused(claim: Claim, error: BaseException) -> Refused:
    return Refused(claim, one_line(error), "".join(traceback.format_exception(error)))

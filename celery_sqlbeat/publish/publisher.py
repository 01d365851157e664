"""Publish a batch of claims as messages that the broker confirms in time, or give them back."""

import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.app import Routed
from celery_sqlbeat.celery_bridge.call_check import cause_of, is_in_the_message
from celery_sqlbeat.errors import BrokerUnavailable
from celery_sqlbeat.model import Claim
from celery_sqlbeat.publish.connection import BrokerConnection
from celery_sqlbeat.publish.sender import Declined, Leases, Sender, Sent
from celery_sqlbeat.publish.transports import TIME_UP, MessageTransport, one_line

T = TypeVar("T")

_FLUSH_SECONDS = 0.2  # how long a message waits for others that are slow to make
_RECONNECT_SECONDS = 2.0  # a broker that has just answered is there, or it is away
_MOST_REFUSED = 1000  # jobs that are remembered; each breaks off the batch of others only once


def _always(_queue: str | None) -> bool:
    """Take every queue as leased: only a leased message is published again."""
    return True


class Refused(NamedTuple):
    """A claim that no message can be made of."""

    claim: Claim
    error: str
    traceback: str


class Published(NamedTuple):
    """The outcome of a batch. A failed message may have reached the broker all the same."""

    confirmed: list[Sent]
    failed: list[tuple[Claim, str]]
    declined: list[tuple[Claim, str]]
    """Claims for which the shop's own code sent nothing."""
    refused: list[Refused]
    """Claims that can never be sent as they are; nothing of these has reached the broker."""


Sending = Callable[[], Published]
"""A batch on its way: waits for the broker's confirmations, until the time of the batch is over.

Nothing else is sent before that.
"""


class Publisher:
    """Publishes what stock beat would send; the run is the task id, the claim is in the headers."""

    def __init__(
        self,
        app: Any,
        apply_entry: Callable[..., Any] | None = None,
        entry_of: Callable[[Claim], Any] | None = None,
        patience: float = 1.0,
    ) -> None:
        """`apply_entry` and `entry_of` are the scheduler's.

        `patience`: seconds that one answer of Redis may take; nothing is begun with less time left.
        """
        self._broker = BrokerConnection(app, patience)
        self._sender = Sender(app, apply_entry, entry_of)
        self._refused: set[str] = set()

    def identify(self, store_id: str, namespace: str) -> None:
        """Set the store and the namespace of the messages; workers of others return them."""
        self._sender.store_id, self._sender.namespace = store_id, namespace

    @property
    def is_watched(self) -> bool:
        """Whether a tool watches each entry that is sent, and may open a check-in for it."""
        return self._sender.is_watched

    def connect(self, seconds: float) -> None:
        """Connect to the broker within so many seconds, or raise BrokerUnavailable."""
        self._broker.connect(seconds)

    def publish(self, claims: Sequence[Claim], until: float) -> Published:
        """Publish the claims; returns before `until`, an instant of the monotonic clock."""
        return self.send(claims, until)()

    def send(self, claims: Sequence[Claim], until: float, leases: Leases = _always) -> Sending:
        """Hand the claims to the broker; the caller works on while it confirms them.

        `leases`: whether the workers of a queue keep leases; if not, they are fired and forgotten.
        """
        suspects = [claim for claim in claims if claim.job_id in self._refused]
        others = [claim for claim in claims if claim.job_id not in self._refused] if suspects else claims
        await_confirms = self._send(others, until, leases)

        def await_batch() -> Published:
            published = await_confirms()
            if published.failed and self._broker.was_refused:
                # The broker broke off at one of them; what it had taken goes out again.
                unconfirmed = [claim for claim, _ in published.failed]
                published = published._replace(failed=[])
                self._one_by_one(unconfirmed, until, leases, published)
            if suspects:
                self._one_by_one(suspects, until, leases, published)
            return published

        return await_batch

    def _one_by_one(self, claims: Iterable[Claim], until: float, leases: Leases, published: Published) -> None:
        """Send each claim alone: a refused message breaks off no other. Remember its job."""
        waiting = list(claims)
        while waiting:
            try:
                self._broker.connect(min(max(until - environment.monotonic(), 0.0), _RECONNECT_SECONDS))
            except BrokerUnavailable as away:
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

    def _send(self, claims: Sequence[Claim], until: float, leases: Leases) -> Sending:
        transport = self._broker.transport
        if transport is None:
            return lambda: Published([], [(claim, "the broker is not connected") for claim in claims], [], [])
        transport.until = until
        self._sender.begin_batch(transport, leases)
        sent, failures, declined, refused = self._send_all(claims, transport)
        transport.flush()

        def await_confirms() -> Published:
            transport.until = until
            failures.update(transport.await_confirms())
            if transport.broken is None:
                transport.answered_at = environment.monotonic()
            confirmed = [message for message in sent if message.claim.run_id not in failures]
            failed = [(claim, failures[claim.run_id]) for claim in claims if claim.run_id in failures]
            return Published(confirmed, failed, declined, refused)

        return await_confirms

    def _send_all(
        self, claims: Iterable[Claim], transport: MessageTransport
    ) -> tuple[list[Sent], dict[str, str], list[tuple[Claim, str]], list[Refused]]:
        sent: list[Sent] = []
        failures: dict[str, str] = {}
        declined: list[tuple[Claim, str]] = []
        refused: list[Refused] = []
        last_flush = environment.monotonic()
        for claim in claims:
            now = environment.monotonic()
            if transport.broken is not None or now + transport.reserve >= transport.until:
                failures[claim.run_id] = transport.broken or TIME_UP
                continue
            try:
                message = self._sender.send(claim, transport)
            except Declined as error:
                declined.append((claim, str(error)))
            except Exception as error:
                if is_in_the_message(error, transport.has_reached_broker, transport.connection_errors):
                    refused.append(_refused(claim, cause_of(error)))
                else:
                    failures[claim.run_id] = one_line(error)
            else:
                sent.append(message)
            if now - last_flush > _FLUSH_SECONDS:
                transport.flush()
                last_flush = environment.monotonic()
        return sent, failures, declined, refused

    def queue_of(self, call: Routed) -> str | None:
        """Return the queue of such a message; None where an exchange decides, or unknown."""
        return self._sender.queue_of(call)

    def expires_at(self, claim: Claim, published_at: datetime) -> datetime | None:
        """Return when a message of this claim expires that was published then; None if never."""
        return self._sender.expires_at(claim, published_at)

    def watch(self, send: Callable[[], T]) -> T:
        """Call what sends an entry, and remember whether that raised."""
        return self._sender.watch(send)

    def close(self) -> None:
        """Close the connection; it is opened again by the next `connect`."""
        self._broker.close()


def _refused(claim: Claim, error: BaseException) -> Refused:
    return Refused(claim, one_line(error), "".join(traceback.format_exception(error)))

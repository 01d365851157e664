"""Publishing prepared claims, and a bare loop of `send_task`, in turns.

What slows one of them slows the other.
"""

import secrets
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from typing import NamedTuple

from celery import Celery

from benchmarks.brokers import BROKERS, bench_app, in_words, settled
from celery_sqlbeat.model import Claim, Slot
from celery_sqlbeat.publish.publisher import Publisher

CLAIMS = 10_000
BATCH = 500
BARE = 250  # messages of the loop for each batch; it is the slower one by far
ONE_BY_ONE = 25  # messages that py-amqp confirms one by one for each batch, slower still

_SLOT = Slot("schedule", datetime(2026, 1, 1, tzinfo=timezone.utc), 1, 0, 0, None, None, True, None, False)


class Clock:
    """Adds up what several turns take."""

    def __init__(self) -> None:
        self._seconds = self._processor_seconds = 0.0
        self._messages = 0

    def time(self, messages: int, work: Callable[[], object]) -> None:
        """Measure one turn."""
        started, processor = time.perf_counter(), time.process_time()
        work()
        self.add(messages, time.perf_counter() - started, time.process_time() - processor)

    def add(self, messages: int, seconds: float, processor_seconds: float) -> None:
        """Add a turn that was measured already."""
        self._seconds += seconds
        self._processor_seconds += processor_seconds
        self._messages += messages

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self._messages / self._seconds

    @property
    def processor(self) -> float:
        """Microseconds of this process's time that a message costs.

        The broker's own are not in it.
        """
        return self._processor_seconds / self._messages * 1e6


class Rates(NamedTuple):
    """Of the publisher, of the loop, and of the loop with confirmations where there are any."""

    publisher: Clock
    bare: Clock
    confirmed: Clock | None


def measure(url: str) -> Rates:
    """Publish so many claims in batches."""
    claims = [_claim(number) for number in range(CLAIMS)]
    ours, bare, confirmed = Clock(), Clock(), Clock()
    has_confirms = url.startswith("amqp")
    with bench_app(url) as app, bench_app(url, confirm_publish=True) as confirming, settled(app) as settle:
        publisher = Publisher(app)
        publisher.identify(str(uuid.uuid4()), "default")
        publisher.connect(5)
        _publish(publisher, claims[:BATCH])  # connections and declarations are paid before
        send_bare(app, 1)
        send_bare(confirming, 1)
        for start in range(0, CLAIMS, BATCH):
            batch = claims[start : start + BATCH]
            ours.time(BATCH, lambda batch=batch: _publish(publisher, batch))  # type: ignore[misc]
            bare.time(BARE, lambda: send_bare(app, BARE))
            settle()
            if has_confirms:
                confirmed.time(ONE_BY_ONE, lambda: send_bare(confirming, ONE_BY_ONE))
        publisher.close()
    return Rates(ours, bare, confirmed if has_confirms else None)


def _publish(publisher: Publisher, batch: list[Claim]) -> None:
    published = publisher.publish(batch, time.monotonic() + 30)
    assert len(published.confirmed) == len(batch), published.failed[:1]


def send_bare(app: Celery, messages: int) -> None:
    """Send as plain Celery does."""
    for number in range(messages):
        app.send_task("shop.report", [number])


def _claim(number: int) -> Claim:
    run_id, claim_id = str(uuid.uuid4()), secrets.token_hex(16)
    name, args = f"report-{number}", [number]
    return Claim(f"j{number}", name, "shop.report", args, {}, {}, run_id, claim_id, number, _SLOT, 120.0, 3, True, None)


def main() -> None:
    """Print the rates for the brokers that answer."""
    print(f"\nMessages a second: {CLAIMS:,} prepared claims in batches of {BATCH}, each confirmed by the broker")
    print(f"{'broker':10} {'way':24} {'a second':>10} {'ratio':>6} {'CPU us':>8} {'ratio':>6}")
    for name, url in BROKERS.items():
        try:
            rates = measure(url)
        except Exception as error:
            print(f"{name} is left out: {in_words(error)}")
            continue
        ours = rates.publisher
        print(f"{name:10} {'publisher':24} {ours.rate:>10,.0f} {'':6} {ours.processor:>8.1f}")
        for way, clock in (("send_task", rates.bare), ("send_task, confirmed", rates.confirmed)):
            if clock is not None:
                rate, processor = ours.rate / clock.rate, clock.processor / ours.processor
                print(f"{name:10} {way:24} {clock.rate:>10,.0f} {rate:>6.2f} {clock.processor:>8.1f} {processor:>6.2f}")


if __name__ == "__main__":
    main()

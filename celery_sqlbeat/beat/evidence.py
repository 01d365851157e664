"""Whether everybody who consumes a queue is known to keep leases, so that a copy of a message harms nobody. Pure.

Silence is no evidence: whoever is not known may have taken the message and be busy with it.
"""

from datetime import datetime
from enum import Enum
from typing import NamedTuple

from celery_sqlbeat.beat.consumers import Look


class Verdict(Enum):
    """What is known of the consumers of a queue."""

    KEPT = "everybody keeps leases"
    PLAIN = "a worker without celery-sqlbeat consumes it"
    STRANGERS = "somebody consumes it who is not known to keep leases"
    SILENCE = "nobody can say who consumes it"
    UNDECIDED = "a worker has not been heard of since"


class Register(NamedTuple):
    """The living workers with the extension, as they have registered, beside an instant at which somebody counted."""

    heard: int
    """Those that consume the queue, and have said so after that instant and before."""
    pending: int
    """Those that did before, and may still live."""
    heard_of_all: int
    """The same for whatever queues they consume."""
    pending_of_all: int
    nodes: frozenset[str]
    addresses: frozenset[str]
    """Of their connections, where they know them."""
    now: datetime | None
    """The server's clock; None where no worker is there at all."""


def judge(queue: str, look: Look, register: Register, message_age: float) -> Verdict:
    """What the look says. `message_age`: for so long, at that instant, the message had been there to be taken."""
    roll = look.roll or ()
    if any(each.extension is None and queue in each.queues for each in roll):
        return Verdict.PLAIN
    if look.consumers is not None:
        return _by_count(look.consumers, register.heard, register.pending)
    if look.clients is not None:
        elsewhere = sum(_is_elsewhere(each.extension, register) and queue not in each.queues for each in roll)
        able = [one for one in look.clients if one.is_waiting or one.idle_seconds <= message_age + 1]
        if sum(one.address not in register.addresses for one in able) <= elsewhere:
            return Verdict.KEPT
        known, pending = register.heard_of_all + elsewhere, register.pending_of_all
        return _by_count(len(look.clients), known, pending)
    return Verdict.KEPT if any(each.extension is not None for each in roll) else Verdict.SILENCE


def _by_count(consumers: int, heard: int, pending: int) -> Verdict:
    if consumers <= heard:
        return Verdict.KEPT
    return Verdict.UNDECIDED if consumers <= heard + pending else Verdict.STRANGERS


def _is_elsewhere(extension: object, register: Register) -> bool:
    """Whether who answered is none of the workers of the register."""
    node = extension.get("node") if isinstance(extension, dict) else None
    return node not in register.nodes

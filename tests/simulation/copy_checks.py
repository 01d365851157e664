"""Copies: none goes out while a worker without leases has the message, as far as evidence tells."""

import math
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.broker import Message
from tests.simulation.hub import Process
from tests.simulation.ledger import Ledger

if TYPE_CHECKING:
    from tests.simulation.plain import Plain

# Seconds after a look that has found a stranger for the first time: the one that is to confirm it
# falls into them.
_CONFIRMED_AFTER, _CONFIRMED_BEFORE = 5.0, 15.0

Key = tuple[str, str, int]


class Looked(NamedTuple):
    """What a beat could see of one queue, whether or not it made anything of it."""

    asked_at: float
    counted_at: float
    seen: frozenset[str]
    """The plain workers that were there from its question to the broker's answer, where that or
    they could say so."""
    busy: frozenset[str]
    """Those among them that a connection only shows to be busy, so that it depends on the message's
    age."""


class CopyChecks:
    """Checks each copy of a message against the plain workers that took it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sent_at: dict[Key, float] = {}
        self._taken: dict[Key, list[Plain]] = {}
        self._looks: dict[str, list[Looked]] = {}
        self._left: set[str] = set()

    def took(self, worker: "Plain", message: Message) -> None:
        """Note that a plain worker has a message."""
        run = self._ledger.runs.get(message.run)
        self._ledger.did("plain delivery")
        self._ledger.note(run.job_id if run else None, f"{worker.name} took {message.run} fence {message.fence}")
        self._taken.setdefault((message.run, message.claim, message.fence), []).append(worker)

    def left(self, run_id: str, job_id: str) -> None:
        """Note that a strategy has acknowledged a message: it runs, and nobody hears of it."""
        self._ledger.did("left to a strategy")
        self._ledger.note(job_id, f"a strategy has taken {run_id}")
        self._left.add(run_id)

    def looked(self, beat: Process, look: Looked) -> None:
        """Note that a beat has checked who consumes the queue."""
        self._ledger.did("look")
        seen = ", ".join(sorted(look.seen)) or "nobody else"
        self._ledger.note(None, f"{beat.name} asked at {look.asked_at:.3f} who is there, and could see {seen}")
        self._looks.setdefault(beat.name, []).append(look)

    def published(self, process: Process, message: Message, job_id: str) -> None:
        """Note that a process hands a message to the broker."""
        ledger, key = self._ledger, (message.run, message.claim, message.fence)
        if message.run in self._left:
            ledger.fail("G3", f"{process.name} published a message again that a strategy has taken", job_id)
        if ledger.copies[key] <= 1:
            self._sent_at[key] = ledger.hub.now
            return
        ledger.did("copy")
        if ledger.settings.republish == "never":
            ledger.fail("G3", f"{process.name} published a message again, which is forbidden", job_id)
        sent_at = self._sent_at[key]
        claimed_at = ledger.claimed.get((message.run, message.fence), sent_at)
        set_back_at = min((at for at, seconds in ledger.jumps if at >= claimed_at and seconds < 0), default=math.inf)
        looks = [look for look in self._looks.get(process.name, []) if look.asked_at >= sent_at]
        for worker in self._taken.get(key, []):
            if not looks and worker.consumes:
                ledger.fail("G3", f"{process.name} sent a copy of what {worker.name} has, and has not looked", job_id)
            if any(self._is_proof(worker.name, at, looks, set_back_at) for at in range(len(looks))):
                ledger.fail(
                    "G3", f"{process.name} sent a copy although it could see {worker.name}, which has it", job_id
                )

    def _is_proof(self, name: str, at: int, looks: list[Looked], set_back_at: float) -> bool:
        """Whether this look must keep the beat from sending a copy of what that worker has."""
        look = looks[at]
        if name not in look.seen:
            return False
        is_last = at + 1 == len(looks)
        if look.counted_at >= set_back_at:
            # By the server's clock the message is younger than it is, or this look older than the
            # message. Who answers, is counted or waits for messages is there all the same, whatever
            # the time.
            return is_last and name not in look.busy
        return is_last or not self._was_not_confirmed(name, look, looks[at + 1])

    def _was_not_confirmed(self, name: str, look: Looked, following: Looked) -> bool:
        """Whether the next look, which was to confirm this one, no longer found that worker."""
        seconds = following.asked_at - look.counted_at
        return _CONFIRMED_AFTER <= seconds < _CONFIRMED_BEFORE and name not in following.seen

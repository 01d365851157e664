"""Whether a message may be published again: not while somebody may have taken it who asks nobody before it runs.

Workers take seconds to answer, so they and the broker are asked in a thread: regularly while leased messages are sent,
and when one was not taken in time.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from functools import partial

from celery_sqlbeat.beat.consumers import Look
from celery_sqlbeat.beat.evidence import Register, Verdict, judge
from celery_sqlbeat.beat.standing import Standing

logger = logging.getLogger(__name__)

KEY = "others"
"""Under this key a beat's row tells when it saw somebody at a queue who may keep no leases."""
_FRESH_SECONDS = 60.0  # how long a look is of use: workers are heard of at their next heartbeats
_WATCH_SECONDS = 30.0  # between two looks at a queue that leased messages are sent to
_READ_SECONDS = 0.5  # between two readings of the rows of workers and beats
_CONFIRM_SECONDS = 5.0  # who is there only for a moment asks the workers something, or has not registered yet


LookAt = Callable[[Iterable[str]], Mapping[str, Look]]


class May(Enum):
    """What may be done with a message that was not taken in time."""

    PUBLISH = "publish it again"
    LEAVE = "leave it to a worker without the extension"
    WAIT = "wait, and publish nothing"


class Bystanders:
    """What is known of those who consume queues and may keep no leases. Used by the thread that reaps and fires."""

    def __init__(
        self,
        standing: Standing,
        look_at: LookAt,
        memory: float,
        republishes: bool = True,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`memory`: seconds, as for workers. Without `republishes` nothing is ever published again."""
        self._standing = standing
        self._look_at = look_at
        self._memory = memory
        self._republishes = republishes
        self._clock = clock
        self._start = start or _in_thread
        self._looks: dict[str, Look] = {}
        self._asked_at: dict[str, float] = {}
        self._suspected_at: dict[str, float] = {}
        self._seen: dict[str, datetime] = {}
        self._told: dict[str, str] = {}
        self._wanted: set[str] = set()
        self._is_asking = False
        self._registers: dict[str, tuple[Look, float, Register]] = {}
        self._others: tuple[float, list[Mapping[str, object]]] | None = None
        standing.tell(KEY, lambda: {queue: at.isoformat() for queue, at in dict(self._seen).items()})

    def watch(self, queues: Iterable[str | None]) -> None:
        """Leased messages are sent to these queues: look now and then who is there."""
        now = self._clock()
        for queue in queues if self._republishes else ():
            if queue is not None and now - self._asked_at.get(queue, now - _WATCH_SECONDS) >= _WATCH_SECONDS:
                self._note(queue)
                self._ask(queue)

    def consume(self, queue: str | None) -> bool | None:
        """Whether somebody is known to consume this queue who keeps no leases; None while that is being found out."""
        if queue is None:
            return True
        look = self._looks.get(queue)
        if look is None or self._clock() - look.counted_at > _FRESH_SECONDS:
            self._note(queue)
            self._ask(queue)
            return None
        verdict = judge(queue, look, self._register(queue, look), _FRESH_SECONDS)
        return verdict in (Verdict.PLAIN, Verdict.STRANGERS)

    def may_republish(self, queue: str, published_at: datetime, server_now: datetime) -> May | None:
        """What may be done with a message of this queue; None while that is being found out."""
        if not self._republishes:
            return self._wait(queue, 'sqlbeat_republish is "never"')
        look = self._looks.get(queue)
        if look is None or self._clock() - look.counted_at > _FRESH_SECONDS:
            self._note(queue)
            self._ask(queue)
            return None
        verdict = self._judged(queue, look, published_at, server_now)
        if verdict is None:
            return None
        if verdict is Verdict.PLAIN:
            return May.LEAVE
        if verdict is not Verdict.KEPT:
            return self._wait(queue, verdict.value)
        seen_at = self._seen_at(queue, server_now)
        if seen_at is not None and (not look.is_counted or seen_at >= published_at):
            return self._wait(queue, f"{Verdict.STRANGERS.value}, or did at {seen_at:%Y-%m-%d %H:%M:%S} UTC")
        if look.is_backed_up:
            return self._wait(queue, f"{look.waiting} messages wait in it, and it may be one of them")
        self._told.pop(queue, None)
        return May.PUBLISH

    def _judged(self, queue: str, look: Look, published_at: datetime, server_now: datetime) -> Verdict | None:
        seconds_ago = self._clock() - look.counted_at
        counted_at = server_now - timedelta(seconds=seconds_ago)
        age = (counted_at - published_at).total_seconds()
        verdict = judge(queue, look, self._register(queue, look), max(0.0, age))
        if verdict is Verdict.STRANGERS:
            since = self._suspected_at.setdefault(queue, look.counted_at)
            if look.counted_at - since < _CONFIRM_SECONDS:
                if seconds_ago >= _CONFIRM_SECONDS:
                    self._ask(queue)
                return None
        elif verdict is not Verdict.UNDECIDED:
            self._suspected_at.pop(queue, None)
        if verdict in (Verdict.STRANGERS, Verdict.PLAIN):
            self._seen[queue] = counted_at
        return None if verdict is Verdict.UNDECIDED else verdict

    def _seen_at(self, queue: str, server_now: datetime) -> datetime | None:
        """When a beat last saw somebody there, as long as that is remembered."""
        if self._others is None or self._clock() - self._others[0] >= _READ_SECONDS:
            self._others = self._clock(), self._standing.told_by_others(KEY)
        told = [_instant(each.get(queue)) for each in self._others[1]]
        latest = max((at for at in (*told, self._seen.get(queue)) if at is not None), default=None)
        return latest if latest is not None and (server_now - latest).total_seconds() < self._memory else None

    def _register(self, queue: str, look: Look) -> Register:
        """The workers beside this look; the same for all leases of a batch."""
        now = self._clock()
        known = self._registers.get(queue)
        if known is None or known[0] is not look or now - known[1] >= _READ_SECONDS:
            known = self._registers[queue] = (look, now, self._standing.register(queue, now - look.counted_at))
        return known[2]

    def _wait(self, queue: str, reason: str) -> May:
        if self._told.get(queue) != reason:
            self._told[queue] = reason
            logger.warning("what was not taken in time from queue %s is not sent once more: %s", queue, reason)
        return May.WAIT

    def _note(self, queue: str) -> None:
        """Remember whom the last look has found there: who took a message may be gone when that is missed."""
        look = self._looks.pop(queue, None)
        if look is None:
            return
        seconds_ago = self._clock() - look.counted_at
        register = self._register(queue, look)
        verdict = judge(queue, look, register, look.counted_at - self._asked_at.get(queue, look.counted_at))
        if verdict in (Verdict.STRANGERS, Verdict.PLAIN) and register.now is not None:
            self._seen[queue] = register.now - timedelta(seconds=seconds_ago)

    def _ask(self, queue: str) -> None:
        self._looks.pop(queue, None)
        self._wanted.add(queue)
        if not self._is_asking:
            self._is_asking = True
            wanted, self._wanted = self._wanted, set()
            self._asked_at |= dict.fromkeys(wanted, self._clock())
            self._start(partial(self._find_out, wanted))

    def _find_out(self, queues: Iterable[str]) -> None:
        """In the thread."""
        try:
            found = self._look_at(queues)
        except Exception as error:  # the broker is away: what is not known is no evidence
            logger.info("it is not known who consumes %s: %s", ", ".join(queues), error)
            found = {queue: Look(self._clock(), None) for queue in queues}
        self._looks |= found
        self._is_asking = False


def _instant(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="sqlbeat-bystanders", daemon=True).start()
